"""`knowngood harvest`: read the registry's releases and write `facts/`, one file a package.

Third-party code is read as text or syntax tree, never imported or run.
"""

from knowngood.harvest.readers import READERS
from knowngood.harvest.run import Report, harvest

__all__ = ["READERS", "Report", "harvest"]
