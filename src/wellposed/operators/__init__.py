"""Operators: facts about what they do to axes and elements, without statistics."""
