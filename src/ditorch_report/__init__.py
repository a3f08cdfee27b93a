"""One HTML file that shows what the tools of a run found; nothing in it comes from the network.

Without torch, so that it is quick, and runs wherever a run's folder was copied to. In reading order:

    run_folder.py   what the tools left on disk, read as it is
    call_table.py   one row for each op call, from all of these files
    trace.py        when each call ran: own times, and when the device was idle
    modules.py      flame graph and heat map; ranks.py, memory.py
    watch.py        curves and alerts of a long run
    wrong_places.py what is wrong, the worst first
    spread.py       the first NaN and what became of it
    sources.py      lines of the program with those around them
    captured.py     captured calls, with histograms of the device's results and the reference's
    statistics.py, comparison.py, conformance.py: what other commands have made
    run_contents.py all of that together, as the page wants it; contents.py: of all that was asked for
    packing.py      compressed, in pieces that the page unpacks when it needs them
    page.py         the file; assets/ has its CSS and scripts, vendor/ the plots of others
    live.py         the same page while the program runs
"""
