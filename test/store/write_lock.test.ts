import { DatabaseSync } from 'node:sqlite';
import { expect, it } from 'vitest';
import { wordStep } from '../support/steps.ts';
import { describeStoreOn } from './on_store.ts';
import { newMain, RunScene } from './run_scene.ts';
import { refusalOf } from './scene.ts';
import { sqlitePath } from './sql.ts';

describeStoreOn(['sqlite'], 'A1: a file that another program writes to', (on) => {
  const scene = () => new RunScene(on.store);

  /** Holds the write lock of the file, as another program does, until the returned function is called. */
  function lockFile(): () => void {
    const foreign = new DatabaseSync(sqlitePath(on.database));
    foreign.exec('begin immediate');
    return () => {
      foreign.exec('commit');
      foreign.close();
    };
  }

  it('a locked database delays neither reads nor the event loop; writes wait, and run in order once it is free', async () => {
    const here = scene();
    const made = await here.createWith(['a']);
    const ended: string[] = [];
    const unlock = lockFile();
    const appends = ['b', 'c', 'd'].map((word, i) =>
      here.append(made, [wordStep(BigInt(i + 1), word)]).then(() => ended.push(word)),
    );
    for (let i = 0; i < 100; i += 1) await new Promise((resolve) => setImmediate(resolve));
    for (let read = 0; read < 10; read += 1) expect(await here.words(made)).toEqual(['a']);
    expect(ended).toEqual([]);
    unlock();
    await Promise.all(appends);
    expect(ended).toEqual(['b', 'c', 'd']);
    expect(await here.words(made)).toEqual(['a', 'b', 'c', 'd']);
  });

  it('a locked database makes every waiting call fail with DATABASE_UNAVAILABLE, each at its own deadline', async () => {
    const here = scene();
    const run = await here.makeRun({ mainTrajectory: newMain(), status: 'RUNNING' });
    const made = await here.createWith(['a']);
    const point = { name: 'm', metricStep: 1n, value: 1, stageId: undefined };
    let iterations = 0;
    const unlock = lockFile();
    const begun = performance.now();
    const calls = [
      here.append(made, [wordStep(1n, 'b')]),
      here.create(),
      here.delete(made),
      ...Array.from({ length: 4 }, () => here.store.logMetrics(here.namespace, run.id, [point])),
    ].map((call) => refusalOf(call).then(({ reason }) => reason));
    let over = false;
    const tick = () => {
      iterations += 1;
      if (!over) setTimeout(tick, 1);
    };
    tick();
    expect(await Promise.all(calls)).toEqual(calls.map(() => 'DATABASE_UNAVAILABLE'));
    over = true;
    // Waits of 4.5 s one after the other would take more than half a minute.
    expect(performance.now() - begun).toBeLessThan(15_000);
    expect(iterations).toBeGreaterThan(100);
    unlock();
    expect(await here.words(made)).toEqual(['a']);
    await here.append(made, [wordStep(1n, 'b')]);
    await here.store.logMetrics(here.namespace, run.id, [point]);
  });
});
