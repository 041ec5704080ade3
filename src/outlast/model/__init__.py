"""The networks, how one is built from its name, and the file that holds a trained one."""
