"""Ten short lessons, each with an experiment that runs and a challenge that knows whether it was met."""

from viz.lessons import memory, scheduling
from viz.lessons.lesson import Lesson

LESSONS: tuple[Lesson, ...] = (*scheduling.LESSONS, *memory.LESSONS)
