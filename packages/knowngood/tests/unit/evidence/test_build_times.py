"""The minutes that a build takes are those that nights measured."""

import json

from knowngood.evidence.build_times import BuildTimes, read_build_times


def rebuild(seconds, outcome="same", check="rebuild"):
    return {"check": check, "outcome": outcome, "seconds": seconds}


def test_the_minutes_are_those_of_rebuilds_that_ended(tmp_path):
    nights = tmp_path / "nights/rebuilds"
    nights.mkdir(parents=True)
    results = [rebuild(61), rebuild(290), rebuild(4000, outcome="failed"), rebuild(5000, check="suite")]
    (nights / "one.json").write_text(json.dumps({"node": {"cpus": 2}, "results": results}))
    (tmp_path / "nights/two.json").write_text(json.dumps({"node": {"cpus": 16}, "results": [rebuild(20)]}))
    (nights / "torn.json").write_text('{"node": {"cp')
    (nights / "foreign.json").write_text("[]")
    times = read_build_times(tmp_path)
    assert times.minutes == (1, 5)
    assert times.text == "1 to 5 minutes to build, by 3 rebuilds on 2 to 16 cores"


def test_where_no_night_measured_a_build_nothing_is_said_of_its_minutes(tmp_path):
    assert read_build_times(tmp_path) == BuildTimes()
    assert read_build_times(tmp_path).text == "nobody measured how long it takes to build"
