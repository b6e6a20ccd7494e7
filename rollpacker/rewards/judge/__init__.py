"""The LLM judge: a language model reads question and response, and its next token is the verdict.

From the outside in: `worker` (answers in, verdicts out, in batches as they arrive), `reading` (what the judge reads:
the message of `template.jinja` in the judge's chat template, cut to its length), `verdicts` (what the probabilities of
that token are worth). The model itself is any `protocols.judging.JudgeModel`; `rollpacker.engines` has them.

Source: RollPacker, section 4.3: a one-token verdict by Qwen2.5-7B-Instruct. The paper gives neither the judge's prompt
nor its tokens; those here are this project's.
"""
