# ruff: noqa: E501 – a transcript a line
"""Transcripts that must not become environments, each with the reason that has to be given."""

import json

ITEMS = "CREATE TABLE items (name TEXT, price INTEGER);\nINSERT INTO items VALUES ('pen', 3), ('cup', 5), ('hat', 9);"
NAMES = {"names.txt": "bo\nal\ncy\n", "notes.md": "one\ntwo\n"}


def shell(name, instruction, *actions, files=NAMES, **more):
    """Commands with what they said; a command alone said nothing."""
    listed = [a if isinstance(a, tuple) else (a, "") for a in actions]
    rows = [{"shell": command, "output": said} for command, said in listed]
    world = {} if files is None else {"files": files}
    return {"id": name, "instruction": instruction, **world, "actions": rows, "finished": True, **more}


def query(name, instruction, *statements, database=ITEMS, **more):
    """Statements with what they said."""
    rows = [{"query": sql, "output": said} for sql, said in statements]
    return {"id": name, "instruction": instruction, "database": database, "actions": rows, "finished": True, **more}


def chat(name, instruction, *turns, files=NAMES):
    """A call a turn: (command or raw arguments, what came back or None)."""
    messages = [{"role": "user", "content": instruction}]
    for i, (arguments, said) in enumerate(turns):
        arguments = json.dumps({"command": arguments[1:]}) if arguments.startswith("!") else arguments
        call = {"id": str(i), "type": "function", "function": {"name": "bash", "arguments": arguments}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        if said is not None:
            messages.append({"role": "tool", "tool_call_id": str(i), "content": said})
    if not turns or turns[-1][1] is not None:
        messages.append({"role": "assistant", "content": "I did it."})
    return {"id": name, "messages": messages, "files": files}


# fmt: off
PLANTED = [
    # Nothing is done, or nothing is left of it.
    (shell("only-reads", "Tell me who stands in names.txt.", ("cat names.txt", "bo\nal\ncy"), ("wc -l names.txt", "3 names.txt")), "no_effect"),
    (shell("undone", "Tidy up the directory.", "mv names.txt people.txt", "mv people.txt names.txt"), "no_effect"),
    (query("only-selects", "what does the pen cost", ("SELECT price FROM items WHERE name = 'pen'", "price\n3")), "no_effect"),
    (chat("only-talk", "Sort names.txt into sorted.txt."), "no_actions"),
    # The recording is not whole.
    (shell("no-word", "", "sort names.txt > sorted.txt"), "no_instruction"),
    (chat("no-result", "Sort names.txt into sorted.txt.", ("!cat names.txt", "bo\nal\ncy"), ("!sort names.txt > s.txt", None)), "truncated"),
    (chat("half-a-call", "Sort names.txt into sorted.txt.", ('{"command": "sort names.txt > so', "")), "truncated"),
    ({"id": "open-quote", "session": "# Add a line to notes.md.\n$ cat notes.md\none\ntwo\n$ echo 'three >> notes.md\n"}, "truncated"),
    (query("stopped", "remove the cup", ("DELETE FROM items WHERE name = 'cup'", "ok, 1 rows changed"), finished=False), "truncated"),
    # It did not work out.
    (shell("fails", "Move names.txt to old.", "echo x > x", ("mv names.txt old/", "mv: cannot move 'names.txt' to 'old/': Not a directory\nexit code 1")), "failed_at_end"),
    (query("no-such-table", "add a mug at 4", ("INSERT INTO items VALUES ('mug', 4)", "ok, 1 rows changed"), ("SELECT * FROM item", "error: no such table: item")), "failed_at_end"),
    (shell("other-name", "Write the number of lines of names.txt to total.txt.", "wc -l < names.txt > totals.txt"), "unmet"),
    # It comes out differently each time.
    (shell("clock", "Write today's date into stamp.txt.", "date +%F > stamp.txt"), "unstable"),
    (shell("chance", "Write a random number into token.txt.", "echo token-$RANDOM > token.txt"), "unstable"),
    (shell("as-listed", "List all files in list.txt.", "ls -U | grep -v list > list.txt"), "unstable"),
    (query("any-row", "copy one of the items to a table picked", ("CREATE TABLE picked AS SELECT * FROM items LIMIT 1", "ok, 0 rows changed")), "unstable"),
    # Its world is not here.
    (shell("network", "Fetch the page into page.html.", "curl -s http://example.com > page.html"), "outside"),
    (shell("system", "Copy the list of users to users.txt.", "cp /etc/passwd users.txt"), "outside"),
    (shell("another-file", "Sort names.txt into sorted.txt.", ("cat names.txt", "ann\nbert\nzoe"), "sort names.txt > sorted.txt"), "not_reproduced"),
    (shell("never-seen", "Sort people.txt into sorted.txt.", "sort people.txt > sorted.txt", files=None), "no_initial_state"),
]
# fmt: on
