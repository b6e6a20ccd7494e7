"""Environments: classes with GEM's and gymnasium's interface whose actions and observations are texts.

    class Guess:
        def reset(self, *, seed=None, options=None):  # options: the other fields of the prompt's line
            return "Guess a number.", {}

        def step(self, action):  # the text of a turn
            return observation, reward, terminated, truncated, {}

`environment=gym environment.env=PACKAGE.MODULE:NAME` runs any such class; those that lie here need no other package.
`environment=tools` and `environment=loop` are such classes, too (`tools`, `loop`): the one calls functions that a model
calls, the other runs an agent loop of one's own, with the names of `agent_loop`. `environment=verifiers` runs tasksets
of the package `verifiers` as one (`verifiers`), in an interpreter that has it.

Each runs in a process of its own that is killed when it hangs. Sources: GEM (github.com/axon-rl/gem) `Env.reset` and
`Env.step`; gymnasium.Env, whose `options` and five results are these.
"""
