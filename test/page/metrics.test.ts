import { describe, expect, it } from 'vitest';
import { bandOf } from '../../page/src/run/band.ts';
import { labelNames, linesOf } from '../../page/src/run/lines.ts';
import { MetricBook, type MetricRead, MOST_POINTS } from '../../page/src/run/metric_book.ts';
import { type Series, spliced } from '../../page/src/tree/series.ts';

function series(...points: readonly (readonly [number, number])[]): Series {
  return {
    steps: Float64Array.from(points, ([step]) => step),
    values: Float64Array.from(points, ([, value]) => value),
  };
}

/** A server of metrics that remembers what was read. */
class Server {
  readonly calls: string[] = [];
  readonly points = new Map<string, [number, number][]>();
  fails = false;

  readonly read = async (
    runIds: readonly string[],
    keys: readonly string[],
    {
      from = Number.NEGATIVE_INFINITY,
      to = Number.POSITIVE_INFINITY,
    }: { from: number | undefined; to: number | undefined },
  ) => {
    this.calls.push(`${runIds.join()} ${keys.join()} ${from}..${to}`);
    if (this.fails) throw new Error('no connection');
    const found = new Map<string, MetricRead[]>();
    for (const key of keys) {
      const lines = runIds.map((runId) => {
        const all = (this.points.get(`${runId} ${key}`) ?? []).filter(([step]) => from <= step && step <= to);
        return { runId, series: series(...all), points: all.length };
      });
      found.set(key, lines);
    }
    return found;
  };

  /** Returns what a watcher would be told. */
  log(runId: string, key: string, ...points: [number, number][]) {
    const all = this.points.get(`${runId} ${key}`) ?? [];
    const changedFrom = Math.min(...points.map(([step]) => step));
    const kept = all.filter(([step]) => !points.some(([other]) => other === step));
    this.points.set(
      `${runId} ${key}`,
      [...kept, ...points].sort(([a], [b]) => a - b),
    );
    return { key, points: kept.length + points.length, changedFrom };
  }
}

const ALL = { from: undefined, to: undefined };
/** Timers run in the order in which they were set, so the book has gathered and read what was wanted before. */
const settled = () => new Promise((resolve) => setTimeout(() => setImmediate(resolve), 0));
const stepsOf = (book: MetricBook, key: string) => book.linesOf(key).map((line) => [...line.series.steps]);

describe('the metrics of a run', () => {
  it('are read when their plot is on screen, together, and then only from the first changed step on', async () => {
    const server = new Server();
    const book = new MetricBook(server.read, ALL, () => undefined);
    book.note('r', [server.log('r', 'a', [0, 1], [1, 2]), server.log('r', 'b', [0, 1]), server.log('r', 'c', [0, 1])]);
    await settled();
    expect(server.calls).toEqual([]);
    expect(book.keys).toEqual(['a', 'b', 'c']);
    book.want('a', true);
    book.want('b', true);
    await settled();
    await settled();
    expect(server.calls).toEqual(['r a,b -Infinity..Infinity']);
    server.calls.length = 0;
    book.note('r', [server.log('r', 'a', [2, 3]), server.log('r', 'b', [2, 3]), server.log('r', 'c', [2, 3])]);
    await settled();
    expect(server.calls).toEqual(['r a,b 2..Infinity']);
    expect([stepsOf(book, 'a'), stepsOf(book, 'b'), stepsOf(book, 'c')]).toEqual([[[0, 1, 2]], [[0, 2]], []]);
    expect(book.linesOf('a')[0]?.points).toBe(3);
    book.note('r', [server.log('r', 'a', [1, 9])]);
    await settled();
    expect([...(book.linesOf('a')[0]?.series.values ?? [])]).toEqual([1, 9, 3]);
    // A plot that left the screen waits until it is back.
    book.want('a', false);
    book.note('r', [server.log('r', 'a', [3, 4])]);
    await settled();
    expect(stepsOf(book, 'a')).toEqual([[0, 1, 2]]);
    book.want('a', true);
    await settled();
    expect(stepsOf(book, 'a')).toEqual([[0, 1, 2, 3]]);
  });

  it('keep the lines of a former range until the new one is read, and leave out what is outside of it', async () => {
    const server = new Server();
    const before = new MetricBook(server.read, ALL, () => undefined);
    before.note('r', [server.log('r', 'a', [0, 1], [5, 2], [9, 3])]);
    before.want('a', true);
    await settled();
    const book = new MetricBook(server.read, { from: 4, to: 6 }, () => undefined, before);
    expect(stepsOf(book, 'a')).toEqual([[0, 5, 9]]);
    book.note('r', [{ key: 'a', points: 3, changedFrom: 0 }]);
    await settled();
    expect(stepsOf(book, 'a')).toEqual([[5]]);
    server.calls.length = 0;
    book.note('r', [server.log('r', 'a', [10, 1])]);
    await settled();
    expect(server.calls).toEqual([]);
  });

  it('are read again as a whole after a failure, and when a line has too many points', async () => {
    const server = new Server();
    const faults: unknown[] = [];
    const book = new MetricBook(server.read, ALL, (error) => error !== undefined && faults.push(error));
    book.want('a', true);
    server.fails = true;
    book.note('r', [server.log('r', 'a', [0, 1])]);
    await settled();
    expect(faults).toEqual([new Error('no connection')]);
    server.fails = false;
    book.note('r', [server.log('r', 'a', [1, 1])]);
    await settled();
    expect(stepsOf(book, 'a')).toEqual([[0, 1]]);
    server.calls.length = 0;
    const many = Array.from({ length: MOST_POINTS }, (_, i): [number, number] => [2 + i, i]);
    book.note('r', [server.log('r', 'a', ...many)]);
    await settled();
    await settled();
    expect(server.calls).toEqual(['r a 2..Infinity', 'r a -Infinity..Infinity']);
  });

  it('splice points in at any place', () => {
    const all = series([0, 1], [2, 2], [4, 3]);
    expect([...spliced(all, 2, series([3, 9])).steps]).toEqual([0, 3]);
    expect([...spliced(all, -1, series()).steps]).toEqual([]);
    expect([...spliced(series(), 7, series([7, 1])).steps]).toEqual([7]);
  });
});

describe('several runs', () => {
  it('are overlaid, or shown as mean with the range of their values by a label', () => {
    const runs = [
      { id: 'a', name: 'one', labels: { lr: '0.1', seed: '1' } },
      { id: 'b', name: 'two', labels: { lr: '0.1' } },
      { id: 'c', name: '', labels: {} },
    ];
    const read = [
      { runId: 'a', series: series([0, 1], [1, 3]), points: 2 },
      { runId: 'b', series: series([0, 3], [1, 5], [2, 7]), points: 3 },
      { runId: 'c', series: series([0, 9]), points: 1 },
    ];
    expect(labelNames(runs)).toEqual(['lr', 'seed']);
    expect(linesOf(read, runs, '').lines.map(({ name, place }) => [name, place])).toEqual([
      ['one', 0],
      ['two', 1],
      [expect.any(String), 2],
    ]);
    const { names, lines } = linesOf(read, runs, 'lr');
    expect(names).toEqual(['lr=0.1 (2)', 'lr= (1)']);
    expect([...(lines[0]?.series.values ?? [])]).toEqual([2, 4, 7]);
    expect([...(lines[0]?.band?.low ?? [])]).toEqual([1, 3, 7]);
    expect([...(lines[0]?.band?.high ?? [])]).toEqual([3, 5, 7]);
    expect(lines[0]?.points).toBe(5);
  });

  it('have a mean at every step of any of them, without values that are no numbers', () => {
    const { mean, low } = bandOf([series([0, 1], [4, 5]), series([1, Number.NaN], [2, 3])]);
    expect([...mean.steps]).toEqual([0, 1, 2, 4]);
    expect([...mean.values]).toEqual([1, 1, 2, 5]);
    expect([...low]).toEqual([1, 1, 1, 5]);
    expect(bandOf([]).mean.steps).toHaveLength(0);
  });
});
