"""Errors that users make: what happened, to which object, what to do."""

from __future__ import annotations

import pytest

import millrace as mr

from .conftest import image_recipe


def failure(cls, loader):
    with pytest.raises(cls) as caught:
        list(loader)
    text = str(caught.value)
    assert "\n" not in text
    assert "[kind=" not in text
    return text


def test_missing_files(loader, tmp_path):
    text = failure(mr.NotFoundError, loader(mr.Recipe(f"{tmp_path}/none-{{00..03}}.tar")))
    assert "none-00.tar" in text


def test_missing_folder(loader, tmp_path):
    assert str(tmp_path / "nowhere") in failure(mr.NotFoundError, loader(mr.Recipe(str(tmp_path / "nowhere"))))


def test_folder_without_samples(loader, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "empty" in failure(mr.MillraceError, loader(mr.Recipe(str(tmp_path / "empty"))))


def test_unknown_operator(loader, source):
    text = failure(mr.InvalidError, loader(mr.Recipe(source).op("decode_imag", field="image")))
    assert 'did you mean "decode_image"?' in text


def test_misspelt_parameter(loader, source):
    recipe = mr.Recipe(source).decode_image().op("random_resized_crop", field="image", size=8, scal=[0.5, 1])
    text = failure(mr.InvalidError, loader(recipe))
    assert 'unknown parameter "scal" of random_resized_crop' in text
    assert 'did you mean "scale"?' in text


def test_unknown_field(loader, source):
    text = failure(mr.InvalidError, loader(mr.Recipe(source).decode_image("imgae")))
    assert '"imgae"' in text
    assert '"image"' in text


def test_truncated_image(loader, spoilt):
    text = failure(mr.BadDataError, loader(image_recipe(spoilt)))
    for word in ("train-01.tar", "00025", "offset", "decode_image"):
        assert word in text


def test_unknown_policy_for_bad_samples(loader, recipe):
    assert '"ignore"' in failure(mr.InvalidError, loader(recipe, on_error="ignore"))


def test_what_came_before_a_bad_sample_is_handed_out(loader, spoilt):
    batches = []
    with pytest.raises(mr.BadDataError):
        for batch in loader(image_recipe(spoilt), 1):
            batches.append(batch)
    assert [int(b.meta.samples[0]) for b in batches] == list(range(len(batches)))


def test_global_batch_that_the_ranks_cannot_share(loader, recipe):
    with pytest.raises(mr.InvalidError, match="cut evenly among 3 ranks"):
        iter(loader(recipe, None, global_batch_size=8, rank=0, world_size=3))


@pytest.mark.parametrize(
    ("options", "word"),
    [({"batch_size": 8}, "batch"), ({"seed": 1}, "seed"), ({"shuffle": True}, "shuffle"), ({"tail": "drop"}, "tail")],
)
def test_ranks_that_disagree(loader, recipe, options, word):
    job = f"disagree-{word}"
    first = loader(recipe, 4, job=job, rank=0, world_size=2)
    iter(first)
    second = loader(recipe, **({"batch_size": 4, "job": job, "rank": 1, "world_size": 2} | options))
    text = failure(mr.ConflictError, second)
    assert "rank 1" in text
    assert job in text
    assert word in text


def test_ranks_with_different_recipes(loader, recipe):
    iter(loader(recipe, 4, job="recipes", rank=0, world_size=2))
    text = failure(mr.ConflictError, loader(recipe.center_crop("image", 5), 4, job="recipes", rank=1, world_size=2))
    assert "recipe" in text


def test_state_of_other_pixels(loader, source):
    made = loader(image_recipe(source), 4)
    next(iter(made))
    state = made.state_dict()
    changed = mr.Recipe(source).decode_image("image").center_crop("image", 6).label("label")
    other = loader(changed, 4)
    other.load_state_dict(state)
    text = failure(mr.ConflictError, other)
    assert "recipe" in text
    assert 'on_mismatch="continue"' in text
    other = loader(changed, 4, on_mismatch="continue")
    other.load_state_dict(state)
    assert next(iter(other)).meta.step == 1


def test_state_of_another_seed(loader, recipe):
    made = loader(recipe, 4, shuffle=True, seed=1)
    next(iter(made))
    other = loader(recipe, 4, shuffle=True, seed=2, on_mismatch="continue")
    other.load_state_dict(made.state_dict())
    failure(mr.ConflictError, other)


def test_state_that_is_none(loader, recipe):
    made = loader(recipe, 4)
    made.load_state_dict({"millrace": "nonsense"})
    assert "cursor" in failure(mr.InvalidError, made)


def test_a_missing_rank_is_named(loader, recipe):
    made = loader(recipe, 4, rank=0, world_size=2, timeout=3)
    with pytest.raises(mr.StallError, match=r"^rank 0 got no batch in 3 s: .*rank 1"):
        next(iter(made))


def test_recipe_file(loader, source, tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(f"source: {source}\noperators:\n  - decode_image: {{feild: image}}\n")
    assert 'did you mean "field"?' in failure(mr.InvalidError, loader(path))
    path.write_text(
        f"source: {source}\noperators:\n  - decode_image: {{field: image}}\n  - center_crop: {{field: image, size: 8}}\n"
    )
    assert len(list(loader(path))) == 14
