import { describe, expect, it } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { ListOrder } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { filterOf } from '../../page/src/home/filter.ts';

const read = (query: string) => filterOf(new URLSearchParams(query));

describe('the filter of the runs', () => {
  it('is in the address', () => {
    expect(read('text=lr&status=failed&label=lr=0.1,%20kind=a=b&order=reward')).toEqual({
      text: 'lr',
      statuses: [Status.FAILED],
      labels: { lr: '0.1', kind: 'a=b' },
      order: ListOrder.REWARD,
      ascending: false,
    });
  });

  it('lists the newest first, names from A on, and both the other way round if asked', () => {
    const orders = ['', 'reverse=true', 'order=name', 'order=name&reverse=true', 'order=updated'];
    expect(orders.map(read).map(({ order, ascending }) => [order, ascending])).toEqual([
      [ListOrder.CREATE_TIME, false],
      [ListOrder.CREATE_TIME, true],
      [ListOrder.NAME, true],
      [ListOrder.NAME, false],
      [ListOrder.UPDATE_TIME, false],
    ]);
  });

  it('takes any address: what is unknown does not filter, and texts have a length that the server accepts', () => {
    expect(read('status=nonsense&order=__proto__&label=,=x,a&text=%00')).toMatchObject({
      text: '',
      statuses: [],
      labels: {},
      order: ListOrder.CREATE_TIME,
    });
    const { text } = read(`text=${'\u{1f600}'.repeat(100)}`);
    expect(new TextEncoder().encode(text)).toHaveLength(256);
    expect(Object.keys(read(`label=${Array.from({ length: 99 }, (_, i) => `l${i}=1`).join()}`).labels)).toHaveLength(
      16,
    );
  });
});
