"""Recipes: what a sample is. One to one with the YAML form, which any other tool reads too."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from millrace._functions import named, pickled
from millrace.errors import InvalidError

__all__ = ["Recipe"]

Size: TypeAlias = "int | Sequence[int]"


class Recipe:
    """What a sample is: a source, the fields taken from it, operators in order, and the output.

    A recipe cannot be changed; each method returns a new one. Names and parameters are torchvision's. A parameter that
    is not given is not written down, so that its default is the server's; ``millrace plan`` shows it. The server
    checks names and values, and its errors name the nearest known word.

    Parameters
    ----------
    source : str or sequence of str
        URIs: brace patterns such as ``"s3://bucket/train-{000000..001281}.tar"``, single shards, directories.
    fields : mapping, optional
        Field name to the extensions (or column names) it is taken from, the first that a sample has:
        ``{"image": ["jpg", "png"], "label": "cls"}``; ``{"from": "cls", "optional": True}`` for one that may be missing.

    Examples
    --------
    >>> recipe = Recipe("train-{00..19}.tar").decode_image("image").random_resized_crop("image", size=224)
    >>> recipe.to_json()
    '{"source": "train-{00..19}.tar", "operators": [{"decode_image": {"field": "image"}}, ...
    """

    __slots__ = ("_document", "_shipped")

    def __init__(
        self, source: str | Sequence[str], fields: Mapping[str, str | Sequence[str] | Mapping[str, Any]] | None = None
    ) -> None:
        document: dict[str, Any] = {"source": _source(source)}
        if fields:
            document["fields"] = {str(name): _field(str(name), value) for name, value in fields.items()}
        self._document = document
        # Functions that cannot be imported by name, by the place of their operator.
        self._shipped: dict[int, Callable[..., Any]] = {}

    # Operators.

    def op(self, name: str, /, **params: Any) -> Recipe:
        """Add any operator by its name.

        Parameters
        ----------
        name : str
            Registered name, such as ``"random_resized_crop"``.
        **params
            Its parameters as the YAML form spells them. ``resources={"cpu": 2}`` and ``barrier=True`` belong to every
            operator. A parameter that is None is left out.
        """
        given = {key: _plain(value, f"{name}.{key}") for key, value in sorted(params.items()) if value is not None}
        return self._with("operators", [*self._document.get("operators", []), {name: given}])

    def decode_image(self, field: str = "image", *, mode: str | None = None, exif: str | None = None) -> Recipe:
        """Decode JPEG or PNG bytes.

        Parameters
        ----------
        field : str
            Field with the bytes, replaced by the pixels.
        mode : {"rgb", "l"}, optional
            Three channels or one.
        exif : {"ignore", "apply"}, optional
            Whether the orientation that the file states is applied.
        """
        return self.op("decode_image", field=field, mode=mode, exif=exif)

    def resize(
        self,
        field: str,
        size: Size,
        *,
        max_size: int | None = None,
        interpolation: str | None = None,
        antialias: bool | None = None,
        pillow: str | None = None,
    ) -> Recipe:
        """Resize: one number is the length of the shorter side, two are height and width.

        Parameters
        ----------
        field : str
            Image field.
        size : int or (int, int)
            Pixels.
        max_size : int, optional
            Greatest length of the longer side.
        interpolation, antialias, pillow : optional
            Filter, and the version of Pillow whose pixels are wanted (``">=13"`` or ``"<13"``).
        """
        return self.op(
            "resize",
            field=field,
            size=size,
            max_size=max_size,
            interpolation=interpolation,
            antialias=antialias,
            pillow=pillow,
        )

    def center_crop(self, field: str, size: Size) -> Recipe:
        """Cut the centre; what is smaller is padded with black.

        Parameters
        ----------
        field : str
            Image field.
        size : int or (int, int)
            Height and width, or the side of a square.
        """
        return self.op("center_crop", field=field, size=size)

    def random_crop(
        self,
        field: str,
        size: Size,
        *,
        padding: Size | None = None,
        pad_if_needed: bool | None = None,
        fill: Size | None = None,
    ) -> Recipe:
        """Cut at a random place.

        Parameters
        ----------
        field : str
            Image field.
        size : int or (int, int)
            Height and width, or the side of a square.
        padding : int or sequence of int, optional
            Pixels around the image first: all sides, (left/right, top/bottom) or (left, top, right, bottom).
        pad_if_needed : bool, optional
            Pad images that are smaller than the crop, instead of refusing them.
        fill : int or (int, int, int), optional
            Value of padding.
        """
        return self.op("random_crop", field=field, size=size, padding=padding, pad_if_needed=pad_if_needed, fill=fill)

    def random_resized_crop(
        self,
        field: str,
        size: Size,
        *,
        scale: tuple[float, float] | None = None,
        ratio: tuple[float, float] | None = None,
        interpolation: str | None = None,
        antialias: bool | None = None,
        pillow: str | None = None,
    ) -> Recipe:
        """Cut a random area of a random aspect ratio and resize it.

        Parameters
        ----------
        field : str
            Image field.
        size : int or (int, int)
            Height and width of the result, or the side of a square.
        scale : (float, float), optional
            Bounds of the area, as parts of the image's.
        ratio : (float, float), optional
            Bounds of the aspect ratio.
        interpolation, antialias, pillow : optional
            As for :meth:`resize`.
        """
        return self.op(
            "random_resized_crop",
            field=field,
            size=size,
            scale=scale,
            ratio=ratio,
            interpolation=interpolation,
            antialias=antialias,
            pillow=pillow,
        )

    def random_horizontal_flip(self, field: str, *, p: float | None = None) -> Recipe:
        """Mirror left and right with a probability.

        Parameters
        ----------
        field : str
            Image field.
        p : float, optional
            Probability.
        """
        return self.op("random_horizontal_flip", field=field, p=p)

    def normalize(self, field: str, mean: Sequence[float] | float, std: Sequence[float] | float) -> Recipe:
        """Subtract ``mean`` and divide by ``std`` per channel; on uint8 pixels after scaling to 0–1.

        Parameters
        ----------
        field : str
            Image field.
        mean, std : float or sequence of float
            One value, or one per channel.
        """
        return self.op("normalize", field=field, mean=mean, std=std)

    def to_tensor(self, field: str, *, layout: str | None = None, dtype: str | None = None) -> Recipe:
        """Bring an image to a layout and element type.

        Parameters
        ----------
        field : str
            Image field.
        layout : {"CHW", "HWC"}, optional
            Order of the dimensions.
        dtype : {"uint8", "float32", "bfloat16", "float16"}, optional
            Element type; floats are scaled to 0–1.
        """
        return self.op("to_tensor", field=field, layout=layout, dtype=dtype)

    def label(
        self, field: str = "label", *, source: str | None = None, key: str | None = None, dtype: str | None = None
    ) -> Recipe:
        """Read a number or text out of a field of text or JSON.

        Parameters
        ----------
        field : str
            Field that is made.
        source : str, optional
            Field that it is read from (``from`` in YAML, a reserved word in Python); the same one by default.
        key : str, optional
            Path inside a JSON document: ``"annotation.class"``.
        dtype : {"int64", "float64", "text"}, optional
            Type of the result.
        """
        return self.op("label", field=field, key=key, dtype=dtype, **{"from": source})

    def select(self, *fields: str) -> Recipe:
        """Keep only these fields, in this order.

        Parameters
        ----------
        *fields : str
            Field names.
        """
        return self.op("select", fields=list(fields))

    def rename(self, source: str, to: str) -> Recipe:
        """Give a field another name.

        Parameters
        ----------
        source : str
            Present name (``from`` in YAML).
        to : str
            New name.
        """
        return self.op("rename", to=to, **{"from": source})

    # Functions of one's own.

    def map(
        self,
        function: Callable[..., Any] | str,
        *,
        output: Mapping[str, Any] | None = None,
        input: Sequence[str] | None = None,
        version: int | str | None = None,
        args: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        open_timeout: float | None = None,
        resources: Mapping[str, int] | None = None,
    ) -> Recipe:
        """Replace each row by what a function returns for it; it runs on the workers.

        A function that can be imported goes by its name, ``"package.module:name"``; workers have to have it. Others
        (lambdas, closures, all of ``__main__``) are shipped by cloudpickle with the recipe, to workers that allow it: those
        that ``millrace local`` starts for this script do. With several ranks those of rank 0 are used.

        Parameters
        ----------
        function : callable, class or str
            Gets a row, a dict, and returns one, with the fields that it makes; all others stay. A parameter named ``ctx``
            gets a :class:`Context`. A class is made into an object once in each process, and the object called.
        output : mapping, optional
            Fields that are made anew or with another type: ``"text"``, ``"bytes"``, ``"int64"``, ``"float64"``, ``"image"``, or
            ``{"dtype": "float32", "shape": [512]}``.
        input : sequence of str, optional
            Fields that the function gets; all by default.
        version : int or str, optional
            Raise it when results change: states know a function by name and version, not by its code.
        args : mapping, optional
            Keyword arguments of the class, or of each call.
        timeout, open_timeout : float, optional
            Seconds that a call, and loading the function, may take.
        resources : mapping, optional
            Slots of one task, ``{"python": 1}`` by default.
        """
        return self._python("map", function, output, input, version, args, timeout, open_timeout, resources)

    def filter(
        self,
        function: Callable[..., Any] | str,
        *,
        input: Sequence[str] | None = None,
        version: int | str | None = None,
        args: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        open_timeout: float | None = None,
        resources: Mapping[str, int] | None = None,
    ) -> Recipe:
        """Keep the rows for which a function returns true.

        Parameters
        ----------
        function : callable, class or str
            Gets a row and returns whether it stays. As for :meth:`map`.
        input, version, args, timeout, open_timeout, resources : optional
            As for :meth:`map`.
        """
        return self._python("filter", function, None, input, version, args, timeout, open_timeout, resources)

    def flat_map(
        self,
        function: Callable[..., Any] | str,
        *,
        output: Mapping[str, Any] | None = None,
        input: Sequence[str] | None = None,
        version: int | str | None = None,
        args: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        open_timeout: float | None = None,
        resources: Mapping[str, int] | None = None,
    ) -> Recipe:
        """Replace each row by the rows that a function returns, or yields, for it: none, one or many.

        Parameters
        ----------
        function : callable, class or str
            Gets a row and gives rows. As for :meth:`map`.
        output, input, version, args, timeout, open_timeout, resources : optional
            As for :meth:`map`.
        """
        return self._python("flat_map", function, output, input, version, args, timeout, open_timeout, resources)

    def map_batches(
        self,
        function: Callable[..., Any] | str,
        *,
        batch_size: int | None = None,
        format: str | None = None,
        keeps_rows: bool | None = None,
        output: Mapping[str, Any] | None = None,
        input: Sequence[str] | None = None,
        version: int | str | None = None,
        args: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        open_timeout: float | None = None,
        resources: Mapping[str, int] | None = None,
    ) -> Recipe:
        """Hand many rows to a function at a time, as columns.

        Parameters
        ----------
        function : callable, class or str
            Gets a dict of NumPy arrays, or a record batch of Arrow's, and returns such, or yields several. A parameter
            named ``ctx`` gets a :class:`BatchContext`.
        batch_size : int, optional
            Rows at most; what is at hand of a source partition by default.
        format : {"numpy", "arrow"}, optional
            What the function gets.
        keeps_rows : bool, optional
            Whether each row gives one, in order, as is the default. Otherwise the function hands on ``__row__``, which
            numbers the rows that it got.
        output, input, version, args, timeout, open_timeout, resources : optional
            As for :meth:`map`.
        """
        more = {"batch_size": batch_size, "format": format, "keeps_rows": keeps_rows}
        return self._python("batches", function, output, input, version, args, timeout, open_timeout, resources, **more)

    def _python(
        self,
        mode: str,
        function: Callable[..., Any] | str,
        output: Mapping[str, Any] | None,
        input: Sequence[str] | None,
        version: int | str | None,
        args: Mapping[str, Any] | None,
        timeout: float | None,
        open_timeout: float | None,
        resources: Mapping[str, int] | None,
        **more: Any,
    ) -> Recipe:
        call, shipped = named(function)
        recipe = self.op(
            "python",
            call=call,
            mode=None if mode == "map" else mode,
            output=output,
            input=input,
            version=version,
            args=args,
            timeout=timeout,
            open_timeout=open_timeout,
            resources=resources,
            **more,
        )
        if shipped is not None:
            recipe._shipped = {**self._shipped, len(self._document.get("operators", [])): shipped}
        return recipe

    # The rest of the document.

    def output(self, **columns: Mapping[str, str] | None) -> Recipe:
        """Declare the columns of a batch, in order; without it every field that is left comes in its natural form.

        Parameters
        ----------
        **columns
            Field name to ``{"layout": "CHW", "dtype": "uint8"}`` with either key, or None for the natural form.
        """
        declared = {name: None if v is None else _plain(v, f"output.{name}") for name, v in columns.items()}
        return self._with("output", declared)

    def partition(
        self,
        *,
        samples: int | None = None,
        target_bytes: int | None = None,
        block_samples: int | None = None,
        window_blocks: int | None = None,
        lanes: int | None = None,
    ) -> Recipe:
        """Fix sizes that are otherwise derived from the dataset when a job is created. They are part of the order.

        Parameters
        ----------
        samples : int, optional
            Samples of a source partition.
        target_bytes : int, optional
            Bytes of an output partition at which it is handed on.
        block_samples : int, optional
            Samples of a shuffle block.
        window_blocks : int, optional
            Blocks of a shuffle window.
        lanes : int, optional
            Windows that the order draws from at a time.
        """
        sizes = {
            "samples": samples,
            "target_bytes": target_bytes,
            "block_samples": block_samples,
            "window_blocks": window_blocks,
            "lanes": lanes,
        }
        return self._with(
            "partition", {name: _plain(size, f"partition.{name}") for name, size in sizes.items() if size is not None}
        )

    # Forms.

    def to_dict(self) -> dict[str, Any]:
        """Return the document as plain dicts and lists; they are the caller's.

        Raises
        ------
        InvalidError
            When it has a function that cannot be imported by name, as in all forms.
        """
        document: dict[str, Any] = json.loads(self.to_json())
        return document

    def to_json(self, *, indent: int | None = None) -> str:
        """Write the recipe as JSON, which is YAML too and is what the client sends.

        Parameters
        ----------
        indent : int, optional
            Spaces for each level; one line without it.
        """
        self._check_forms()
        return self._dump(self._document, indent)

    def to_yaml(self) -> str:
        """Write the recipe as YAML. Needs PyYAML; ``to_json(indent=2)`` is valid YAML without it."""
        from millrace import _yaml

        self._check_forms()
        return _yaml.dump(self._document)

    def _check_forms(self) -> None:
        for place in self._shipped:
            call = self._document["operators"][place]["python"]["call"]
            raise InvalidError(
                f"recipe: operator {place + 1}: {call} cannot be written down, only shipped: "
                "move it to a module that can be imported, and it goes by its name"
            )

    def _dump(self, document: dict[str, Any], indent: int | None = None) -> str:
        return json.dumps(document, ensure_ascii=False, indent=indent, allow_nan=False)

    def _sent(self) -> str:
        """Return the text that the server gets: functions that cannot be imported come with it."""
        if not self._shipped:
            return self.to_json()
        operators = list(self._document["operators"])
        for place, function in self._shipped.items():
            params = operators[place]["python"]
            operators[place] = {"python": {**params, "pickle": pickled(params["call"], function)}}
        return self._dump({**self._document, "operators": operators})

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Recipe:
        """Read a recipe from plain dicts and lists.

        Parameters
        ----------
        document : mapping
            Keys ``source``, ``fields``, ``operators``, ``output`` and ``partition``, as in YAML.

        Raises
        ------
        InvalidError
            When the shape is wrong. Names and values are checked by the server.
        """
        if not isinstance(document, Mapping):
            raise InvalidError(f"a recipe must be a mapping (key: value), not {type(document).__name__}")
        if "source" not in document:
            raise InvalidError("recipe: source is missing; give a URI or a list of URIs")
        recipe = cls(document["source"], document.get("fields"))
        operators = document.get("operators") or []
        if not isinstance(operators, Sequence) or isinstance(operators, str):
            raise InvalidError("recipe: operators must be a list (- name: {parameters})")
        for i, entry in enumerate(operators, 1):
            if isinstance(entry, str):
                entry = {entry: None}
            if not isinstance(entry, Mapping) or len(entry) != 1:
                raise InvalidError(
                    f"recipe: operator {i}: write one operator an entry, as in - resize: {{field: image, size: 224}}"
                )
            ((name, params),) = entry.items()
            if params is not None and not isinstance(params, Mapping):
                raise InvalidError(f"recipe: operator {i}: the parameters of {name} must be a mapping")
            given = {key: _plain(v, f"operator {i}: {key}") for key, v in sorted((params or {}).items())}
            recipe = recipe._with("operators", [*recipe._document.get("operators", []), {str(name): given}])
        for key in document:
            if key not in ("source", "fields", "operators"):
                recipe = recipe._with(str(key), _plain(document[key], str(key)))
        return recipe

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """Read a recipe from JSON text.

        Parameters
        ----------
        text : str
            As :meth:`to_json` writes it.
        """
        try:
            document = json.loads(text)
        except ValueError as error:
            raise InvalidError(f"recipe is not JSON: {error}") from error
        return cls.from_dict(document)

    @classmethod
    def from_yaml(cls, text: str) -> Recipe:
        """Read a recipe from YAML text. Needs PyYAML; a recipe file can be given to the loader by name without it.

        Parameters
        ----------
        text : str
            As :meth:`to_yaml` writes it, or by hand.
        """
        from millrace import _yaml

        return cls.from_dict(_yaml.load(text))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Recipe):
            return NotImplemented
        return self._dump(self._document) == self._dump(other._document) and self._shipped == other._shipped

    def __hash__(self) -> int:
        return hash(self._dump(self._document))

    def __repr__(self) -> str:
        calls = [f"Recipe({self._document['source']!r})"]
        for entry in self._document.get("operators", []):
            ((name, params),) = entry.items()
            calls.append(f"{name}({', '.join(f'{k}={v!r}' for k, v in params.items())})")
        return ".".join(calls)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Recipe.from_json, (self.to_json(),))

    def _with(self, key: str, value: Any) -> Recipe:
        recipe = object.__new__(Recipe)
        recipe._document = {**self._document, key: value}
        recipe._shipped = self._shipped
        return recipe


def _source(source: Any) -> str | list[str]:
    if isinstance(source, str) and source:
        return source
    if isinstance(source, Sequence) and source and all(isinstance(uri, str) and uri for uri in source):
        return source[0] if len(source) == 1 else list(source)
    raise InvalidError(f"recipe: source must be a URI or a list of URIs, not {source!r}")


def _field(name: str, value: Any) -> Any:
    value = _plain(value, f"fields.{name}")
    if isinstance(value, list) and len(value) == 1:
        return value[0]
    return value


def _plain(value: Any, where: str) -> Any:
    """Reduce a value to what JSON carries unchanged: a whole float becomes an integer, a tuple a list."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Mapping):
        return {str(k): _plain(v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(v, where) for v in value]
    try:
        return operator.index(value)
    except TypeError:
        pass
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InvalidError(
            f"recipe: {where} is a {type(value).__name__}; it must be text, a number, true or false, a list or a mapping"
        ) from None
    if not math.isfinite(number):
        raise InvalidError(f"recipe: {where} is {number}, which is not a finite number")
    return int(number) if number.is_integer() else number
