"""`sglang-sm120 selftest --sm120-code`: what Triton compiles for SM120 and SM121, run on an SM90.

Nobody here has an SM120, and the machine code of an SM90 is another: other tiles, other MMAs, other decisions of
Triton's passes. So the PTX that Triton writes for sm_120a is assembled for sm_90a and run, after the few instructions
that SM90 lacks are replaced by what the PTX ISA says they do (`substitute`). What the runs cannot show: the replaced
instructions themselves, what ptxas makes of the text for SM120, and any time.
"""
