"""``singanet generate``."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from singanet.commands.sample import add_sampling


def add_command(commands: Any) -> None:
    """Add it to argparse's subparsers."""
    parser = commands.add_parser(
        "generate",
        help="let a published language model answer or write on",
        epilog="A model with a chat template is asked by it, another one writes on. The text is "
        "shown as it comes, up to the model's own end. The same seed gives the same text.",
    )
    parser.add_argument(
        "model",
        metavar="FOLDER|FILE.gguf|RUN_DIR",
        help="of a published model, or of a run of finetune",
    )
    parser.add_argument(
        "prompt", metavar="TEXT", help="what is asked, or what the text begins with"
    )
    parser.add_argument("--raw", action="store_true", help="write on, without the chat template")
    parser.add_argument("--system", metavar="TEXT", help="what the template is told before all")
    parser.add_argument("--length", type=int, default=500, metavar="N", help="tokens at most; 500")
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end before this text; may be given several times",
    )
    parser.add_argument(
        "--draft",
        metavar="FOLDER",
        help="a smaller model with the same tokenizer, which writes ahead; the text is drawn as "
        "without it, and how many of its tokens were taken is told at the end",
    )
    parser.add_argument(
        "--ahead", type=int, default=4, metavar="N", help="tokens that --draft writes at a time; 4"
    )
    add_sampling(parser)
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    from singanet import pretrained
    from singanet.decoding import Sampling
    from singanet.runs.run_options import draft_for, ends_of, expect_causal, model_in, tokenizer_for
    from singanet.runs.tasks.published import streamed

    sampling = Sampling(arguments.temperature, arguments.top_k, arguments.top_p)
    place = model_in(arguments.model)
    net = pretrained.load(place, inputs=["input_ids"])
    expect_causal(net, place)
    tokenizer = tokenizer_for(net, place)
    chats = tokenizer.chat_template is not None and not arguments.raw
    ids = _asked(tokenizer, arguments) if chats else tokenizer.encode(arguments.prompt)
    ends = ends_of(net, tokenizer)
    draft = None
    if arguments.draft is not None:
        draft = draft_for(tokenizer, arguments.draft, arguments.ahead)
    drawn = arguments.length, sampling, arguments.seed, ends, arguments.stop, draft
    told = streamed(net, tokenizer, ids, *drawn)
    if not chats:
        print(arguments.prompt, end="", flush=True)
    for text in told:
        print(text, end="", flush=True)
    print()
    if draft is not None and draft.offered:
        share = f"{draft.taken} of {draft.offered} tokens, {draft.acceptance:.0%}"
        print(f"taken of the draft: {share}", file=sys.stderr)
    return 0


def _asked(tokenizer: Any, arguments: argparse.Namespace) -> Any:
    """The ids after which the answer begins."""
    told = [("system", arguments.system), ("user", arguments.prompt)]
    return tokenizer.prompt([{"role": r, "content": text} for r, text in told if text is not None])
