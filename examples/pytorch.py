"""Saves an SRU for C, and runs it.

    pip install sru ninja setuptools safetensors numpy; python pytorch.py"""
import json, sys
path = sys.argv[1] if len(sys.argv) > 1 else "rnn.safetensors"
if path == "--help":
    sys.exit(print("pytorch.py [MODEL.safetensors, to write]"))
if len(sys.argv) > 2 or path.startswith("-"):
    sys.exit("pytorch.py takes one name: see --help")

import torch
from safetensors.torch import save_file
from sru import SRU

config = dict(input_size=8, hidden_size=16, num_layers=2)
torch.manual_seed(3)
rnn = SRU(**config).eval()                          # train yours here

save_file(rnn.state_dict(), path, metadata={"module": "SRU", "config": json.dumps(config)})

x = torch.sin(torch.arange(6 * 8.)).view(6, 1, 8)   # (T,B,input_size)
h, c = rnn(x)
for t in range(6):
    print("h[%d] =" % t, *("%8.5f" % v for v in h[t, 0, :6]), "...")
