"""The hazard checker for machine code: registers, scoreboards, branches and cluster barriers."""
