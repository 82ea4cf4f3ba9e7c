"""``python -m benchmarks.faults --live``: replicas that are killed come back, and what is wrong with a run is found."""

from __future__ import annotations

import json

from benchmarks.faults.live import CASES, KILLS, PROBLEMS, LiveBench, LiveTrial, draw_live


class Told(LiveBench):
    """Makes what a run has told wrong in some way."""

    how = ""

    def train(self, arguments, fault, name):
        if not self.how:
            return super().train(arguments, fault, name)
        out = self.root / "live.out"
        told = json.loads(out.read_text())
        match self.how:
            case "lost steps":
                told["discarded_steps"] = KILLS + 1
            case "wrong losses":
                told["losses"][7] *= 1 + 1e-4
            case "restarted":
                told["pids"] = {rank: [*pids, *range(1, KILLS + 1)] for rank, pids in told["pids"].items()}
            case "wrong count":
                told["lost_tokens"] += 1
            case "unfinished":
                told["losses"].pop()
        out.write_text(json.dumps(told))
        for i in range(KILLS):
            (self.root / f"trial-0/happened-{i}").touch()
        return 0, "" if self.how == "unnamed" else self.said


def test_a_trial_goes_well_and_what_is_wrong_is_found(tmp_path):
    every = (draw_live(0, i) for i in range(0, 99, len(CASES)))
    trial = next(t for t in every if "heal" not in str(t.kills))
    trial = LiveTrial(0, trial.case, trial.kills)
    with Told(tmp_path, 600.0, 600.0) as bench:
        found = bench.trial(trial, 0)
        assert (found["problems"], found["statuses"], found["happened"]) == ([], [0], KILLS)
        assert found["discarded"] <= KILLS
        assert found["recovered"] >= KILLS - 1
        bench.said, right = (bench.root / "live.err").read_text(), (bench.root / "live.out").read_text()
        for how in sorted(PROBLEMS.keys() - {"hang", "orphans", "folders"}):
            (bench.root / "live.out").write_text(right)
            bench.how = how
            assert how in bench.trial(trial, 0)["problems"]


def test_trials_follow_from_their_numbers():
    assert draw_live(0, 7) == draw_live(0, 7) != draw_live(0, 17)
    assert {kill.moment for i in range(50) for kill in draw_live(0, i).kills} == {
        "begin", "vote", "voted", "heal", "give", "soon",
    }  # fmt: skip
