"""The style of Data Docs, light and dark: the part of the original style that the pages need."""

STYLE = """
:root { --ink: #1b1f24; --paper: #fff; --soft: #f3f4f6; --line: #d5d9de; --link: #1f5fa8; --met: #1a7f37;
  --failed: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --paper: #16181c; --soft: #22262c; --line: #3a4048; --link: #7db4f0; --met: #4cc26b;
    --failed: #ff7b72; }
}
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: var(--paper); font: 15px/1.5 system-ui, sans-serif; }
a, .alert a { color: var(--link) !important; text-decoration: none; }
.table-responsive { width: 100%; padding: 0 .7rem; }
a:hover { text-decoration: underline; }
h4, h5, h6, p { margin: 0 0 .5rem; }
h4 { font-size: 1.3rem; } h5 { font-size: 1.1rem; } h6, .h6 { font-size: 1rem; font-weight: 600; }
nav.navbar.sticky-top { height: auto !important; padding: .7rem 1.5rem; background: var(--soft);
  border-bottom: 1px solid var(--line); }
nav .d-flex { display: flex; gap: 1rem; align-items: center; }
ol.breadcrumb { display: flex; flex-wrap: wrap; list-style: none; margin: 0; padding: 0; }
.breadcrumb-item + .breadcrumb-item::before { content: "/"; padding: 0 .5rem; }
.container-fluid.pt-4 { padding: 1.5rem; }
.row { display: flex; flex-wrap: wrap; gap: 0; }
[class*="col-"] { flex: 0 0 100%; max-width: 100%; padding: 0 .7rem; }
@media (min-width: 800px) {
  .col-md-2 { flex-basis: 18%; max-width: 18%; } .col-md-10 { flex-basis: 82%; max-width: 82%; }
  .col-6 { flex-basis: 50%; max-width: 50%; }
}
.sticky { position: sticky; top: 1rem; }
.card { border: 1px solid var(--line); border-radius: 6px; margin-bottom: 1rem; }
.sticky > .card.mb-3, .btn-group, .nav-tabs { display: none; }
.card-header { padding: .5rem .8rem; background: var(--soft); border-bottom: 1px solid var(--line); }
.card-body { padding: .6rem .8rem; }
.card ul, nav ul { list-style: none; margin: 0; padding: 0; }
.alert { padding: .7rem 1rem; margin: .6rem 0; background: var(--soft); border: 1px solid var(--line);
  border-radius: 6px; }
table { width: 100%; border-collapse: collapse; margin: .5rem 0 1rem; }
th, td { padding: .45rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere; }
th { background: var(--soft); }
thead[hidden] { display: none; }
.badge, code, pre { background: var(--soft); border-radius: 4px; padding: 0 .3rem; }
.met { color: var(--met); font-weight: 600; white-space: nowrap; }
.failed { color: var(--failed); font-weight: 600; white-space: nowrap; }
.collapse { display: none; }
.collapse:target { display: block; }
.ge-navigation-sidebar-link { display: block; padding: .15rem 0; }
"""
