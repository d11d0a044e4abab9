"""Saves an SRU for C, and runs it.

    pip install sru ninja setuptools safetensors numpy; python pytorch.py"""
import inspect, json, sys


def config_of(rnn):
    """The arguments with which this SRU or SRUpp was constructed, read off the module."""
    cells = rnn.rnn_lst
    inner = [cell._modules.get("transform_module") for cell in cells]   # of SRUpp, the attention
    config = dict(layer_norm=rnn.use_layer_norm, use_tanh=cells[0].activation_type == 1,
                  proj_input_to_hidden_first=rnn.input_to_hidden is not None)
    if hasattr(rnn, "proj_size"):
        attends = [hasattr(module, "num_heads") for module in inner]
        n = (attends + [True]).index(True) + 1
        if attends == [i % n == n - 1 for i in range(len(attends))]:
            config["attention_every_n_layers"] = n
        else:
            config["attention_last_n_layers"] = sum(attends)
        config["attn_layer_norm"] = inner[0].layer_norm is not None
    base = next(c for c in type(rnn).__mro__ if c.__module__.split(".")[0] == "sru")
    names = inspect.signature(base).parameters
    for part in inner + [cells[0], rnn]:
        config.update((name, getattr(part, name)) for name in names
                      if isinstance(getattr(part, name, None), (bool, int, float, list)))
    return {name: value for name, value in config.items() if name in names}


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else "rnn.safetensors"
    if path == "--help":
        sys.exit(print("pytorch.py [MODEL.safetensors, to write]"))
    if len(sys.argv) > 2 or path.startswith("-"):
        sys.exit("pytorch.py takes one name: see --help")
    import torch
    from safetensors.torch import save_file
    from sru import SRU
    torch.manual_seed(3)
    rnn = SRU(input_size=8, hidden_size=16, num_layers=2).eval()    # train yours here
    save_file(rnn.state_dict(), path, metadata={"module": "SRU",
                                                "config": json.dumps(config_of(rnn))})

    x = torch.sin(torch.arange(6 * 8.)).view(6, 1, 8)               # (T,B,input_size)
    h, c = rnn(x)
    for t in range(6):
        print("h[%d] =" % t, *("%8.5f" % v for v in h[t, 0, :6]), "...")


if __name__ == "__main__":
    main()
