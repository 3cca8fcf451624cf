import { useMemo, useState } from 'preact/hooks';
import { counted, nameOf, number } from '../format.ts';
import { Table } from '../table.tsx';
import { icicleOf, type Searched, valueShades } from './icicle.ts';
import './icicle.css';

interface IcicleItem extends Searched {
  readonly name: string;
}

interface IcicleChartProps {
  readonly items: readonly IcicleItem[];
  readonly selected: string;
  readonly onSelect: (id: string) => void;
}

/** Narrower cells are not drawn, nor what is below them. */
const NARROWEST = 1 / 1000;
/** Levels that are drawn. Lower ones are seen in the rows. */
const MOST_LEVELS = 24;
const LEVEL_HEIGHT = 20;
/** Rows of the table: the most visited trajectories. */
const TABLE_ROWS = 100;

/** A search tree: width is visits, colour is value. */
export function IcicleChart({ items, selected, onSelect }: IcicleChartProps) {
  const [open, setOpen] = useState(false);
  const cells = useMemo(() => icicleOf(items, NARROWEST).filter(({ depth }) => depth < MOST_LEVELS), [items]);
  const shade = useMemo(() => valueShades(items), [items]);
  const levels = cells.reduce((most, { depth }) => Math.max(most, depth + 1), 1);
  const chosen = items.find(({ id }) => id === selected);
  return (
    <figure class="icicle">
      <figcaption>
        <strong>Search tree</strong>
        <span class="dim">width: visits, colour: value</span>
        {chosen !== undefined && <span class="figure">{wordsOf(chosen)}</span>}
        <button type="button" class="plain" aria-expanded={open} onClick={() => setOpen(!open)}>
          Table
        </button>
      </figcaption>
      <div
        role="img"
        aria-label={`${counted(items.length, 'node')} by visits and value. The table has their figures.`}
        class="icicle-cells"
        style={{ height: `${levels * LEVEL_HEIGHT}px` }}
      >
        {cells.map(({ item, left, width, depth }) => (
          // biome-ignore lint/a11y/noStaticElementInteractions lint/a11y/useKeyWithClickEvents: the rows below are selected by keys
          <span
            key={item.id}
            class={item.id === selected ? 'selected' : ''}
            title={wordsOf(item)}
            style={{
              left: `${left * 100}%`,
              top: `${depth * LEVEL_HEIGHT}px`,
              width: `${width * 100}%`,
              '--value': `${Math.round(15 + 70 * shade(item.value))}%`,
            }}
            onClick={() => onSelect(item.id)}
          />
        ))}
      </div>
      {open && (
        <Table label="most visited nodes" columns={['Node', { n: 'Visits' }, { n: 'Value' }]}>
          {items
            .toSorted((a, b) => b.visits - a.visits)
            .slice(0, TABLE_ROWS)
            .map((item) => (
              <tr key={item.id}>
                <th scope="row">{nameOf(item)}</th>
                <td class="n">{number(item.visits)}</td>
                <td class="n">{number(item.value)}</td>
              </tr>
            ))}
        </Table>
      )}
    </figure>
  );
}

function wordsOf(item: IcicleItem): string {
  return `${nameOf(item)}: visits ${number(item.visits)}, value ${number(item.value)}`;
}
