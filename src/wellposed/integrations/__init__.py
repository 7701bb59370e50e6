"""Integrations: initialising before the first step, and watching, in Lightning, transformers and loops of one's own.

`wellposed.integrations.lightning` and `wellposed.integrations.transformers` hold the callbacks; they import these
libraries, and this module does not.
"""

from wellposed.integrations.clipping import ClippingWarning
from wellposed.integrations.watcher import Watcher, watch

__all__ = ["ClippingWarning", "Watcher", "watch"]
