"""Objectives: what a model is asked for, and how examples become its arguments."""

from anyformer.data.objectives.objective import Made, Objective, Setting, Way

__all__ = ["Made", "Objective", "Setting", "Way"]
