"""One request, and the rules that a list of them keeps.

    rid 0, 1, 2, ...      in order of arrival
    arrival_s             a finite float, 0.0 or later, never before the request in front
    prompt_tokens         1 .. 1,073,741,823
    output_tokens         1 .. 1,073,741,823

The types are held strictly (no bool, no numpy scalar): a number that is compared, hashed, printed
and written to JSON must be the same thing everywhere. `Workload.from_arrays` converts.
"""

from dataclasses import dataclass

from kvlab.errors import WorkloadError

# Engines keep positions as int32, and a request holds prompt + output tokens.
MAX_TOKENS = 2**30 - 1


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Units: seconds since the workload began, tokens. Checked by `Workload`."""

    rid: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int


def require_label(field: str, text: object) -> None:
    """Raise unless ``text`` can stand in a CSV comment and under a figure."""
    if not isinstance(text, str) or not text or text != text.strip() or not text.isprintable():
        raise WorkloadError(
            f"the {field} of a workload is one line of printable text without blanks at its ends: "
            f"got {text!r}; it is written into the header of a CSV file and into figures"
        )


def require_requests(requests: tuple[Request, ...]) -> None:
    """Raise on the first request that breaks a rule. One pass; 100,000 requests in 0.1 s."""
    before = 0.0
    for index, request in enumerate(requests):
        rid, arrival = request.rid, request.arrival_s
        prompt, output = request.prompt_tokens, request.output_tokens
        if (
            rid == index
            and type(rid) is type(prompt) is type(output) is int
            and type(arrival) is float
            # A chain that NaN fails, and infinity too.
            and before <= arrival < float("inf")
            and 1 <= prompt <= MAX_TOKENS
            and 1 <= output <= MAX_TOKENS
        ):
            before = arrival
            continue
        _explain(requests, index)


def _explain(requests: tuple[Request, ...], index: int) -> None:
    """Raise for the request at ``index``, naming the first field that is wrong."""
    request = requests[index]
    where = f"at position {index} of {len(requests)}"
    if type(request.rid) is not int or request.rid != index:
        raise WorkloadError(
            f"rids number the requests 0 .. n-1 in order: got rid {request.rid!r} {where}, "
            f"expected {index}; use Workload.from_arrays(...), which numbers them"
        )
    arrival = request.arrival_s
    if type(arrival) is not float or not 0 <= arrival < float("inf"):
        raise WorkloadError(
            f"arrival_s is a finite float of at least 0.0 seconds: got {arrival!r} for rid {index} "
            f"{where}; use Workload.from_arrays(...), which converts numbers, and start at 0.0"
        )
    if index and arrival < requests[index - 1].arrival_s:
        raise WorkloadError(
            f"requests are ordered by arrival: rid {index} arrives at {arrival!r} s, before rid "
            f"{index - 1} at {requests[index - 1].arrival_s!r} s; sort them by arrival_s first"
        )
    for field in ("prompt_tokens", "output_tokens"):
        value = getattr(request, field)
        if type(value) is not int or not 1 <= value <= MAX_TOKENS:
            raise WorkloadError(
                f"{field} is an int in [1, {MAX_TOKENS}]: got {value!r} for rid {index} {where}; "
                f"leave out requests without tokens, and use Workload.from_arrays(...) for numpy "
                f"numbers"
            )
