"""What breaks launches on SM120 beyond the MoE layers: each function looks at one thing and gives one finding.

`doctor` asks about the machine, `plan` about the launch; both show what they get. Nothing here stops a launch.
"""
