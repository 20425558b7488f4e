"""One sitting: product, bare floor and peers measured in turn on the same machine, results asserted in the same run."""
