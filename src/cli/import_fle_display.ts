/** Shows an import of FLE: a bar while it runs on a terminal, and a table of its runs. */
import type { SingleBar } from 'cli-progress';
import type { ImportedVersion, ImportProgress } from '../fle/import.ts';
import { fill, widthOf } from './columns.ts';
import type { Output } from './context.ts';
import { openBars } from './demo_display.ts';

export interface ImportDisplay {
  readonly show: (progress: ImportProgress) => void;
  readonly stop: () => void;
}

export const NO_DISPLAY: ImportDisplay = { show() {}, stop() {} };

export function barDisplay(output: Output): ImportDisplay {
  const bars = openBars(output);
  let bar: SingleBar | undefined;
  return {
    show({ imported, toImport }) {
      if (toImport === 0) return;
      bar ??= bars.create(toImport, 0, { name: 'programs', note: '' });
      bar.update(imported, { note: `of ${toImport}` });
    },
    stop() {
      bars.update();
      bars.stop();
    },
  };
}

const NUMBERS = ['programs', 'imported', 'trajectories', 'branches'] as const;
/** Width of the column of run names. */
const NAME_COLUMNS = { least: 8, most: 40 };

/** Draws a line per run: its programs, the new ones among them, and the trajectories and branches created for these. */
export function importTable(versions: readonly ImportedVersion[]): string[] {
  const longest = Math.max(...versions.map(({ runName }) => widthOf(runName)));
  const width = Math.min(NAME_COLUMNS.most, Math.max(NAME_COLUMNS.least, longest));
  const row = (name: string, cells: readonly (string | number)[]) =>
    [fill(name, width), ...cells.map((cell, i) => String(cell).padStart(NUMBERS[i]?.length ?? 0))].join(' ');
  return [
    row('run', NUMBERS),
    ...versions.map((version) =>
      row(
        version.runName,
        NUMBERS.map((key) => version[key]),
      ),
    ),
  ];
}
