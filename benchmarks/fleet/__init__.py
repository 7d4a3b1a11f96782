"""Many runs at once on two pools with few slots."""
