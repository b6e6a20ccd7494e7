"""A judge's model on an accelerator that has no room for it: its layers stream from host memory in step with compute.

RollPacker runs the LLM judge on the actor's own GPUs and streams its weights layer by layer (section 4.3). The whole
model lies in pinned host memory, a flat buffer per layer; embeddings, norm and output layer lie on the device, and so
does the share of the layers that the copies cannot keep up with. `model.open_model` opens one.

From the outside in: `model` (asynchronous, one thread, a queue of prompts), `batches` (which prompts go together),
`residency` (how many layers stay, and which: the derivation), `decoder` (one forward pass, synchronous),
`device_layers` (slots and their hazards), `host_weights` (flat buffers), `devices` (a GPU's streams, or none) and
`loading`.
"""
