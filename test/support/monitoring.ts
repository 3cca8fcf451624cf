/** What `deploy/` asks Prometheus for. */
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { parse } from 'yaml';

const ROOT = new URL('../../', import.meta.url);
export const RULES_FILE = fileURLToPath(new URL('deploy/helm/anabranch/alerts.yaml', ROOT));

export interface Expression {
  /** Title of the panel, or name of the alert. */
  readonly of: string;
  readonly text: string;
}

interface Dashboard {
  readonly panels: readonly { readonly title: string; readonly targets?: readonly { readonly expr: string }[] }[];
}

interface Rules {
  readonly groups: readonly { readonly rules: readonly { readonly alert: string; readonly expr: string }[] }[];
}

/** The expressions of the dashboard, with values for its variables. */
export function dashboardExpressions(): Expression[] {
  const dashboard = JSON.parse(readFileSync(new URL('deploy/grafana/anabranch.json', ROOT), 'utf8')) as Dashboard;
  return dashboard.panels.flatMap(({ title, targets = [] }) =>
    targets.map(({ expr }) => ({
      of: title,
      text: expr.replaceAll('$instance', '.*').replaceAll('$__rate_interval', '5m'),
    })),
  );
}

export function alertExpressions(): Expression[] {
  const { groups } = parse(readFileSync(RULES_FILE, 'utf8')) as Rules;
  return groups.flatMap(({ rules }) => rules.map(({ alert, expr }) => ({ of: alert, text: expr })));
}

/** A series of a text in the format of Prometheus. */
export interface Series {
  readonly name: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly value: string;
}

export function seriesIn(text: string): Series[] {
  return text
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('#'))
    .map((line) => {
      const [, name = '', labels = '', value = ''] = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line) ?? [];
      const pairs = [...labels.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, label = '', of = '']) => [label, of]);
      return { name, labels: Object.fromEntries(pairs), value };
    });
}
