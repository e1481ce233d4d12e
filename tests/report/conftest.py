"""What tests of figures share."""

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text


@pytest.fixture
def words_of(monkeypatch):
    """Draws, and gives all that is written in the figure."""

    def draw(function, *arguments, **keywords):
        figures = []
        write = Figure.savefig
        monkeypatch.setattr(Figure, "savefig", lambda figure, *given, **named: (figures.append(figure), write(figure, *given, **named)))
        function(*arguments, **keywords)
        (figure,) = figures
        return [text.get_text() for text in figure.findobj(Text) if text.get_text()]

    return draw
