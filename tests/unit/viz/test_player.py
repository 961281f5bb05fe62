"""Playing what was: the time cursor goes on by itself, at a chosen speed, to the newest step."""

from __future__ import annotations

from typing import Any

from tests.unit.viz.javascript import run_js

SETTING = """
    const { Player } = await load("player.js");
    const { Cursor } = await load("cursor.js");
    const { History } = await load("history.js");
    const { View } = await load("view.js");
    const history = new History();
    history.frames = given.steps.map(([t, end], i) => ({ step: i + 1, t, end, duration: end - t }));
    history.map.step = history.frames.length;
    const view = new View({ history, isRun: given.isRun }, new Cursor(), {});
    let wanted = null;
    const player = new Player(view, [view], (tick) => { wanted = tick; });
    let now = 1000;
    const screen = (ms) => { now += ms; const tick = wanted; wanted = null; tick?.(now); return view.frame.step; };
    const shown = () => [view.frame.step, player.isPlaying, view.cursor.isLive];
"""
TEN = [[i / 10, i / 10 + 0.1] for i in range(10)]


def play(code: str, steps: list[list[float]] = TEN, is_run: bool = True) -> Any:
    return run_js(SETTING + code, {"steps": steps, "isRun": is_run})


def test_a_run_at_its_end_plays_from_its_beginning_and_stops_at_its_end() -> None:
    seen = play(
        """
        player.toggle();
        const told = [shown()];
        screen(16);
        for (let i = 0; i < 20; i++) { screen(50); told.push(shown()); }
        player.toggle();
        return [...told, shown()];
        """
    )
    assert seen[0] == [1, True, False]
    assert [step for step, _, _ in seen[:19]] == sorted(step for step, _, _ in seen[:19])
    assert {step for step, _, _ in seen[:-1]} == set(range(1, 11))
    assert seen[-2] == [10, False, True]
    assert seen[-1] == [1, True, False]


def test_the_speed_is_how_much_of_the_runs_time_goes_by() -> None:
    seen = play(
        """
        const told = {};
        for (const speed of [0.5, 1, 4]) {
            view.cursor.set({ time: 0 });
            player.speed = speed;
            player.play();
            screen(16);
            screen(210);
            told[speed] = view.frame.step;
            player.pause();
        }
        return told;
        """
    )
    assert seen == {"0.5": 2, "1": 3, "4": 9}


def test_pause_stays_and_a_moved_cursor_is_played_on_from() -> None:
    seen = play(
        """
        view.cursor.set({ time: 0 });
        player.toggle();
        screen(16);
        screen(110);
        player.toggle();
        const told = [shown()];
        screen(500);
        told.push(shown());
        player.toggle();
        screen(16);
        view.cursor.set({ time: 0.7 });
        screen(110);
        told.push(shown());
        view.cursor.set({ time: null });
        screen(110);
        return [...told, shown()];
        """
    )
    assert seen == [[2, False, False], [2, False, False], [9, True, False], [10, False, True]]


def test_where_nobody_was_there_for_long_is_left_out() -> None:
    seen = play(
        """
        player.toggle();
        screen(16);
        const told = [];
        for (let i = 0; i < 6; i++) told.push(screen(240));
        return told;
        """,
        steps=[[0, 0.1], [0.1, 0.2], [60, 60.1], [70, 70.1]],
    )
    assert seen == [2, 2, 2, 2, 2, 3]


def test_a_screen_that_stood_still_does_not_jump() -> None:
    seen = play("player.toggle(); screen(16); return screen(60_000);", steps=[[i / 2, i / 2 + 0.5] for i in range(99)])
    assert seen == 1


def test_a_live_picture_is_held_played_and_joins_the_engine_again() -> None:
    seen = play(
        """
        const told = [player.isFollowing];
        player.toggle();
        told.push([...shown(), player.isFollowing]);
        view.cursor.set({ time: 0.8 });
        player.toggle();
        told.push(shown());
        screen(16);
        screen(150);
        told.push([...shown(), player.isFollowing]);
        return told;
        """,
        is_run=False,
    )
    assert seen == [True, [10, False, False, False], [9, True, False], [10, False, True, True]]
