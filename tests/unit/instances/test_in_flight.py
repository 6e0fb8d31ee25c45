from __future__ import annotations

from naiad.core.identity import Identity
from naiad.instances.in_flight import Batch, InFlight, OpenJob
from tests.fakes import fake_job

ALICE, BOB = Identity("alice"), Identity("bob")


def test_a_call_has_the_key_that_its_requests_have_in_common() -> None:
    in_flight = InFlight()
    batch = Batch([], [], 1, 0)
    owners = (ALICE, Identity("alice"), BOB, None)
    for handle, identity in enumerate(owners, 1):
        in_flight.jobs[handle] = OpenJob(fake_job(identity=identity), batch)
    for handles, key_id in (
        ([1], "alice"),
        ([1, 2], "alice"),
        ([3], "bob"),
        ([1, 3], None),
        ([1, 4], None),
        ([4], None),
        ([9], None),
        ([], None),
    ):
        identity = in_flight.find_identity(handles)
        assert (None if identity is None else identity.key_id) == key_id
    del in_flight.jobs[3], in_flight.jobs[4]
    identity = in_flight.find_identity([])
    assert identity is not None
    assert identity.key_id == "alice"
    in_flight.num_bundled = 1
    assert in_flight.find_identity([]) is None
    assert in_flight.find_identity([1]) is ALICE
