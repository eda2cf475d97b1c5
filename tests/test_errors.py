from fedcal.errors import counted


def test_one_and_many():
    assert [counted(n, "round") for n in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]
    assert [counted(n, "class") for n in (1, 2)] == ["1 class", "2 classes"]
