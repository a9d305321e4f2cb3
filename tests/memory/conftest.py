import os

import torch

# Triton reads this when it decorates the kernels, so it must stand before they are first imported.
# Where there is a CUDA device the kernels are compiled, and the `gpu` tests run them.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
