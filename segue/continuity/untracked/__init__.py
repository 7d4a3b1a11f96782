"""Finds untracked state: values that training changes and that are in no component."""
