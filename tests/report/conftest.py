"""What tests of figures share."""

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text


@pytest.fixture
def figure_of(monkeypatch):
    """Draws, and gives the figure that was written."""

    def draw(function, *arguments, **keywords):
        figures = []
        write = Figure.savefig
        with monkeypatch.context() as patch:
            patch.setattr(Figure, "savefig", lambda figure, *given, **named: (figures.append(figure), write(figure, *given, **named)))
            function(*arguments, **keywords)
        (figure,) = figures
        return figure

    return draw


@pytest.fixture
def words_of(figure_of):
    """Draws, and gives all that is written in the figure."""
    return lambda *arguments, **keywords: [text.get_text() for text in figure_of(*arguments, **keywords).findobj(Text) if text.get_text()]
