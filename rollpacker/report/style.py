"""How every picture looks, on the page of a run and in the figures of `analysis`: one colour per system, everywhere.

The systems' colours are Okabe and Ito's, and Tol's: colour-blind readers can tell them apart. What a system
does (its stages, its tokens) has other colours, so that no activity is taken for a system.
"""

from __future__ import annotations

from typing import Final

_SYSTEMS: Final = {  # on a light page and on a dark one
    "verl": ("#7A7A7A", "#9C9C9C"),
    "rlhfuse": ("#0072B2", "#3FA0DA"),
    "tail": ("#E69F00", "#EDB440"),
    "tail-reward": ("#90C987", "#A9D9A2"),
    "tail-reward-planner": ("#72190E", "#C9705F"),
    "rollpacker": ("#D55E00", "#EB7A22"),
    "tail-prompts": ("#999933", "#BDBD6A"),
    "ours": ("#117733", "#4FB477"),
    "ours-exact": ("#332288", "#9A8FE3"),
    "ours-fast": ("#AA4499", "#D58BC9"),
}
SYSTEM_COLORS: Final = {system: light for system, (light, _) in _SYSTEMS.items()}
OTHER_COLORS: Final = ("#009E73", "#CC79A7", "#56B4E9", "#8C6D31")
"""Of what is no system, or one without a colour of its own; by position."""

RC: Final = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "legend.frameon": False,
}
"""Of matplotlib, for all pictures."""

CYCLE_STEPS: Final = 5
"""Four short rounds and a long one at eta 1.25. Curves of rewards and losses are smoothed over so many steps, because
long rounds hold the harder prompts."""

STAGES: Final = {
    "rollout": ("rollout", "#3F7FD9", "#5B97EA"),
    "reward": ("exposed reward", "#B04FC4", "#C778D8"),
    "score": ("rewards", "#B04FC4", "#C778D8"),
    "hand_over": ("hand-over of GPUs", "#7C5E48", "#A58468"),
    "train": ("training", "#1B8F6A", "#35B48C"),
    "suspend": ("waiting for requests in flight", "#C9605B", "#E08680"),
    "switch": ("change of engines", "#23616B", "#3C98A6"),
    "weight_sync": ("weight sync", "#C4AE00", "#D8C534"),
    "catching_up": ("a worker fetching the policy", "#E3D67A", "#807420"),
    "starting": ("an engine starting", "#B9A3D0", "#54467A"),
    "checkpoint": ("checkpoint", "#5A4C96", "#8D7FCB"),
    "other": ("driver and rest", "#A7B0BD", "#6C7787"),
    "stream": ("training during the rollout", "#74C9AB", "#1F7458"),
    "requests": ("requests on an engine", "#9DC3F2", "#38629C"),
    "asleep": ("lent to the trainer", "#C6E8DA", "#2C5044"),
    "idle": ("idle while others generate", "#DFE3E9", "#2F3743"),
    "idle_later": ("idle while the trainer learns, and other", "#C9D0DA", "#465161"),
    "trained": ("trained", "#1B8F6A", "#35B48C"),
    "aborted": ("aborted", "#8E2A57", "#C25A8B"),
    "finished": ("finished, but not needed", "#DDA9C2", "#7A4763"),
    "discarded": ("lost with an environment", "#A9703D", "#C98F5C"),
}
"""What time and tokens were spent on: its name, its colour on a light page and on a dark one."""

PAGE_COLORS: Final = {
    "paper": ("#FFFFFF", "#12161D"),
    "card": ("#F7F8FA", "#1A2029"),
    "ink": ("#1C2430", "#E4E9F0"),
    "soft": ("#5D6878", "#98A4B5"),
    "rule": ("#D5DAE1", "#323B49"),
    "grid": ("#E9ECF0", "#252C37"),
    "tag": ("#FFF1D6", "#3B2F14"),
    "tag-ink": ("#8A5A00", "#F0C674"),
    "on": ("#FEFEFE", "#0E1116"),
    **_SYSTEMS,
    **{f"other-{number}": (color, color) for number, color in enumerate(OTHER_COLORS)},
    **{name: (light, dark) for name, (_, light, dark) in STAGES.items()},
}
"""CSS variables of the page: light and dark."""


def color_of(system: str, position: int) -> str:
    """The system's own colour, or one by its position among those that have none."""
    return SYSTEM_COLORS.get(system, OTHER_COLORS[position % len(OTHER_COLORS)])
