"""What begins a slot besides its schedule and a person: data that has arrived, and data in service that has drifted."""
