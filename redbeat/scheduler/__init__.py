"""The tick: fetch what is due, plan each entry, send its runs, record them."""
