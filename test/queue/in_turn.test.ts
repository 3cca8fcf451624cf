import fc from 'fast-check';
import { expect, it } from 'vitest';
import { InTurn } from '../../src/queue/in_turn.ts';

/** Items `a1`, `a2`, `b1`: of the keys `a` and `b`. */
function of(...items: string[]): InTurn<string> {
  const all = new InTurn<string>();
  for (const item of items) all.add(item[0]!, item);
  return all;
}

it('items of one key are served in order of arrival', () => {
  expect(of('a1', 'a2', 'a3').clear()).toEqual(['a1', 'a2', 'a3']);
});

it('an item can come before the others of its key, which keeps its turn', () => {
  const all = of('a1', 'b1');
  all.addFirst('b', 'b2');
  all.addFirst('c', 'c1');
  expect(all.clear()).toEqual(['a1', 'b2', 'c1', 'b1']);
});

it('MS5: keys are served in turn, however many items one of them has', () => {
  expect(of('a1', 'a2', 'a3', 'b1', 'b2', 'c1').clear()).toEqual(['a1', 'b1', 'c1', 'a2', 'b2', 'a3']);
});

it('a key that was served waits for the others, even if it comes back at once', () => {
  const all = of('a1', 'b1', 'b2');
  all.serve(all.next()!);
  all.add('a', 'a2');
  expect(all.clear()).toEqual(['b1', 'a2', 'b2']);
});

it('an item that leaves takes no turn, and an item leaves once', () => {
  const all = of('a1');
  const leaving = all.add('a', 'a2');
  all.add('b', 'b1');
  expect([all.delete(leaving), all.delete(leaving), all.size]).toEqual([true, false, 2]);
  all.serve(leaving);
  expect(all.clear()).toEqual(['a1', 'b1']);
});

it('the first item that fits is next, of the first key that has one, and its key loses its turn', () => {
  const all = of('a1', 'b1', 'b2', 'a2');
  const next = all.next((item) => item.endsWith('2'))!;
  expect([next.item, all.next((item) => item === 'c')]).toEqual(['a2', undefined]);
  all.serve(next);
  expect(all.clear()).toEqual(['b1', 'a1', 'b2']);
});

it('nothing is lost, each key keeps its order, and no key gets two turns while another waits', () => {
  const operation = fc.oneof(
    fc.record({ add: fc.constantFrom('a', 'b', 'c') }),
    fc.record({ serve: fc.constant(true) }),
    fc.record({ leave: fc.nat() }),
  );
  fc.assert(
    fc.property(fc.array(operation, { maxLength: 200 }), (operations) => {
      const all = new InTurn<{ key: string; number: number }>();
      const model = new Map<string, number[]>();
      let [turns, count]: [string[], number] = [[], 0];
      const places = new Map<number, ReturnType<typeof all.add>>();
      for (const each of operations) {
        if ('add' in each) {
          count += 1;
          places.set(count, all.add(each.add, { key: each.add, number: count }));
          if (!model.get(each.add)?.length) turns.push(each.add);
          model.set(each.add, [...(model.get(each.add) ?? []), count]);
        } else if ('serve' in each) {
          const next = all.next();
          expect(next?.item.key).toBe(turns[0]);
          if (next === undefined) continue;
          all.serve(next);
          const line = model.get(next.item.key)!;
          expect(next.item.number).toBe(line.shift());
          turns = [...turns.slice(1), ...(line.length > 0 ? [next.item.key] : [])];
        } else {
          const waiting = [...model.values()].flat();
          const number = waiting[each.leave % Math.max(1, waiting.length)];
          if (number === undefined) continue;
          const { key } = places.get(number)!.item;
          all.delete(places.get(number)!);
          model.set(
            key,
            model.get(key)!.filter((other) => other !== number),
          );
          if (model.get(key)!.length === 0) turns = turns.filter((other) => other !== key);
        }
        expect(all.size).toBe([...model.values()].flat().length);
      }
    }),
  );
});
