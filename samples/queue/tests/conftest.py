"""A folder of its own for the queue and its runs, before `payments` is imported."""

import os
import tempfile

os.environ["PAYMENTS_FOLDER"] = tempfile.mkdtemp(prefix="payments-")
