"""The process in which the checks of models run: the smoke suite's, with other topics.

``python -m model_tests.worker FD``
"""

from __future__ import annotations

from smoke_tests import worker

worker.TOPICS["model"] = "model_tests.model_check"
worker.TOPICS["probe"] = "model_tests.probe"
worker.TOPICS["formulas"] = "model_tests.formulas_check"
worker.TOPICS["model-speed"] = "model_tests.step_time"

if __name__ == "__main__":
    worker.main()
