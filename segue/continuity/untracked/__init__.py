"""State outside every component: what training changes and no state_dict holds."""
