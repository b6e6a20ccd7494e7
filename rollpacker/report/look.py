"""How the page looks: one colour per activity in light and in dark, sizes, and the few lines of script.

The colours of activities are far enough apart in hue and in lightness that they can be told apart in grey, too.
"""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--card:#f7f8fa;--ink:#1c2430;--soft:#5d6878;--rule:#dfe3e9;--grid:#e9ecf0;
--accent:#2b62c4;--rollout:#3f7fd9;--reward:#b04fc4;--hand_over:#7c5e48;--train:#ee8d1d;--stream:#c9611a;
--switch:#7fb069;--weight_sync:#1f9e77;--checkpoint:#c7b300;--other:#a7b0bd;--asleep:#f8d59d;--idle:#e3e6eb;--idle_later:#cfd5dd;
--trained:#1f9e77;--aborted:#d9553f;--finished:#eab0a4;--run-a:#2b62c4;--run-b:#8a94a3;
--domain-0:#2b62c4;--domain-1:#d9553f;--domain-2:#1f9e77;--domain-3:#b04fc4;--domain-4:#c98a00;--domain-5:#4aa3c7;
--tag:#fff1d6;--tag-ink:#8a5a00;--good:#1a7f5a;--bad:#b53a28}
@media(prefers-color-scheme:dark){:root:not(.light){--paper:#12161d;--card:#1a2029;--ink:#e4e9f0;--soft:#98a4b5;
--rule:#2b3340;--grid:#252c37;--accent:#79aaff;--rollout:#5b97ea;--reward:#c778d8;--hand_over:#a58468;--train:#f29b38;
--stream:#d0702c;--switch:#a3cf8a;--weight_sync:#35b48c;--checkpoint:#d3c02a;--other:#6c7787;--asleep:#8a6a34;--idle:#2f3743;
--idle_later:#414b5a;--trained:#35b48c;--aborted:#e06a55;--finished:#8f4c40;--run-a:#79aaff;--run-b:#8a94a3;
--domain-0:#79aaff;--domain-1:#ee7c68;--domain-2:#46c39b;--domain-3:#cf8ade;--domain-4:#e0b040;--domain-5:#74c4e4;
--tag:#3b2f14;--tag-ink:#f0c674;--good:#55c89a;--bad:#f08a78}}
:root.dark{--paper:#12161d;--card:#1a2029;--ink:#e4e9f0;--soft:#98a4b5;
--rule:#2b3340;--grid:#252c37;--accent:#79aaff;--rollout:#5b97ea;--reward:#c778d8;--hand_over:#a58468;--train:#f29b38;
--stream:#d0702c;--switch:#a3cf8a;--weight_sync:#35b48c;--checkpoint:#d3c02a;--other:#6c7787;--asleep:#8a6a34;--idle:#2f3743;
--idle_later:#414b5a;--trained:#35b48c;--aborted:#e06a55;--finished:#8f4c40;--run-a:#79aaff;--run-b:#8a94a3;
--domain-0:#79aaff;--domain-1:#ee7c68;--domain-2:#46c39b;--domain-3:#cf8ade;--domain-4:#e0b040;--domain-5:#74c4e4;
--tag:#3b2f14;--tag-ink:#f0c674;--good:#55c89a;--bad:#f08a78;color-scheme:dark}
:root.light{color-scheme:light}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,"Segoe UI","Noto Sans",sans-serif}
main{max-width:1180px;margin:0 auto;padding:26px 28px 60px}
h1{font-size:26px;margin:0 0 4px;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:19px;margin:38px 0 4px;padding-top:14px;border-top:1px solid var(--rule)}
h3{font-size:15px;margin:18px 0 4px}
p{margin:4px 0 10px;max-width:86ch}.soft,figcaption{color:var(--soft)}
.tag{display:inline-block;background:var(--tag);color:var(--tag-ink);border-radius:4px;padding:0 7px;font-size:12.5px;
font-weight:600;vertical-align:2px;margin-left:8px;white-space:nowrap}
.tag.measured{background:none;border:1px solid var(--rule);color:var(--soft);font-weight:400}
.tiles{display:grid;grid-template-columns:repeat(var(--columns),1fr);gap:12px;margin:18px 0 6px}
.tile{background:var(--card);border:1px solid var(--rule);border-radius:9px;padding:10px 12px}
.tile b{display:block;font-size:20px;line-height:1.25;font-variant-numeric:tabular-nums;
letter-spacing:-.01em;white-space:nowrap}
.tile span{color:var(--soft);font-size:13px;display:block;line-height:1.35}
.tile em{display:block;font-style:normal;color:var(--ink);opacity:.75}
.two{display:grid;grid-template-columns:1fr 1fr;gap:26px}.two>*,.one>*{min-width:0}
figure{margin:10px 0 6px}figcaption{font-size:13.5px;margin-bottom:3px}
svg{display:block;width:100%;height:auto;overflow:visible}
svg text{font:11.5px system-ui,"Segoe UI","Noto Sans",sans-serif;fill:var(--soft)}svg .on{fill:#fff;font-weight:600}
svg .grid{stroke:var(--grid)}svg .axis{stroke:var(--rule)}svg .limit{stroke:var(--soft);stroke-dasharray:2 3}
svg .line{fill:none;stroke-width:2;stroke-linejoin:round}svg g:hover rect{filter:brightness(1.12)}
.legend{display:flex;flex-wrap:wrap;gap:3px 16px;font-size:13.5px;margin:8px 0 4px;padding:0;list-style:none}
.legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px;vertical-align:-1px}
.legend i.stroke{height:3px;vertical-align:4px;border-radius:1px}
.legend i.dashed{background:repeating-linear-gradient(90deg,var(--c) 0 4px,transparent 4px 7px)!important}
table{border-collapse:collapse;width:100%;font-size:14px;margin:8px 0}
th{text-align:left;font-weight:600;color:var(--soft);font-size:13px;vertical-align:bottom}
td,th{padding:5px 12px 5px 0;border-bottom:1px solid var(--rule);vertical-align:top}
tr:last-child td{border-bottom:0}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:7px}
td.why{min-width:22em}.facts td:first-child{color:var(--soft);white-space:nowrap;width:1%;padding-right:22px}
.facts td{overflow-wrap:anywhere}.good{color:var(--good)}.bad{color:var(--bad)}
.note{border-left:3px solid var(--tag-ink);background:var(--card);padding:7px 13px;margin:12px 0;
border-radius:0 6px 6px 0}
button{float:right;background:var(--card);color:var(--soft);border:1px solid var(--rule);border-radius:6px;
padding:4px 11px;font:13px system-ui,sans-serif;cursor:pointer}
footer{margin-top:44px;color:var(--soft);font-size:13px}
@media(max-width:1000px){.tiles{grid-template-columns:repeat(3,1fr)}}
@media(max-width:860px){.two{grid-template-columns:1fr}main{padding:18px 14px}}
@media print{button{display:none}h2{break-after:avoid}figure,table{break-inside:avoid}}
"""

SCRIPT = """
const root=document.documentElement,dark=matchMedia('(prefers-color-scheme: dark)');
document.querySelector('button').onclick=()=>{
const on=root.classList.contains('dark')||(!root.classList.contains('light')&&dark.matches);
root.classList.remove('dark','light');root.classList.add(on?'light':'dark')};
"""

STAGE_COLORS = {
    "rollout": "rollout",
    "reward": "reward",
    "hand_over": "hand_over",
    "train": "train",
    "switch": "switch",
    "weight_sync": "weight_sync",
    "checkpoint": "checkpoint",
    "other": "other",
    "stream": "stream",
    "score": "reward",
    "judge": "reward",
    "asleep": "asleep",
    "load_weights": "weight_sync",
}
"""The colour of each activity, the same in every chart."""

STAGE_NAMES = {
    "rollout": "rollout",
    "reward": "exposed reward",
    "hand_over": "hand-over of GPUs",
    "train": "training",
    "switch": "change of engines",
    "weight_sync": "weight sync",
    "checkpoint": "checkpoint",
    "other": "driver and rest",
    "stream": "training while the rollout runs",
    "score": "rewards",
    "asleep": "lent to the trainer, asleep",
    "load_weights": "loading weights",
}
