import { count, nameOf, number } from '../format.ts';
import { Table } from '../table.tsx';
import { lineageValue, type Range } from './plot_drawing.ts';
import type { Item } from './rows.ts';
import type { Series } from './series.ts';

/** Steps and trajectories of the table: evenly spaced steps, and the first rows. */
const [STEPS, TRAJECTORIES] = [10, 100];

interface PlotTableProps {
  /** In the order of the rows. */
  readonly items: readonly Item[];
  readonly all: readonly Item[];
  readonly series: ReadonlyMap<string, Series>;
  readonly range: Range;
}

/** The values of the branching plot. Shared steps have the values of their owners. */
export function PlotTable({ items, all, series, range: { from, to } }: PlotTableProps) {
  const spaced = Array.from({ length: STEPS }, (_, at) => Math.round(from + ((to - from) * at) / (STEPS - 1)));
  const steps = [...new Set(spaced)];
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, also by keyboard
    <section class="plot-table" aria-label="values of the plot" tabIndex={0}>
      <Table columns={['Trajectory', ...steps.map((step) => ({ n: `Step ${count(step)}` }))]}>
        {items.slice(0, TRAJECTORIES).map((item) => (
          <tr key={item.id}>
            <th scope="row">{nameOf(item)}</th>
            {steps.map((step) => (
              <td key={step} class="n">
                {step < item.end ? number(lineageValue(all, series, item.id, step)?.value, 5) : ''}
              </td>
            ))}
          </tr>
        ))}
      </Table>
      {items.length > TRAJECTORIES && <p class="dim">The first {TRAJECTORIES} rows.</p>}
    </section>
  );
}
