"""xformers is imported, and asked whether its compiled extension was loaded."""

import json

import xformers._cpp_lib as library

failure = library._cpp_library_load_exception
print(json.dumps({"extension": "not loaded" if failure else "loaded"}))
