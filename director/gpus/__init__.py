"""Share devices among models: decide which models are loaded, own the processes of their servers, swap them."""
