"""State outside every component: values that training changes and no state_dict holds."""
