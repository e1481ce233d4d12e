"""How the command line refuses: exit code 2, and one line."""


def refused(result, *parts):
    """Exit code 2, and one line that says what was wrong."""
    assert result.code == 2
    assert "Traceback" not in result.err
    lines = [line for line in result.err.splitlines() if not line.startswith("run folder:")]
    assert len(lines) == 1, result.err
    assert lines[0].startswith("error: ")
    assert lines[0].isprintable()
    for part in parts:
        assert part in lines[0]
    return True
