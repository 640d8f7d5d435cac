"""Has the server changed? Sequential tests of each figure against the server's own past.

Evidence for a change is a sum of log-likelihood ratios that starts again whenever it falls to
zero (CUSUM), one for each of several sizes of change in each direction. A ratio's mean under
"no change" is at most 1, so such a sum reaches h at most once in e^h observations: that is
where the stated rate of false alarms comes from. What it is measured against, the reference,
is learned from the server and followed slowly.

Acceptance has two sources. Users' traffic is plenty, but of unknown kinds of tasks; probes
are few, but of known ones. ``acceptance`` says how they decide together. ``values`` is for
single numbers with any distribution (step time, KL divergence): it looks at ranks only.

Arrays may have leading dimensions, one server each: simulations run thousands of servers
through the same code that watches one. docs/change-detection.md has the derivations, the
measured rates and delays, and what can not be seen.

In the order of their imports: ``settings``, ``evidence``; ``batch``, what comes in;
``learned``, ``tilts``, ``yardstick``, ``levels``, ``counts``, the detector of acceptance;
``ranks``, that of values; ``found``, a change; ``acceptance`` and ``values``, the decisions;
``server``, all of one server; ``words``, a change in one sentence.
"""
