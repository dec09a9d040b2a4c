"""The style of a comparison's page: light, dark, on a phone and in print."""

STYLE = """
:root{color-scheme:light dark;--ink:#222;--faint:#555;--line:#e6e6e6;--back:#fff;--fair:#00744f;--hindered:#a84300}
@media(prefers-color-scheme:dark){
:root{--ink:#eee;--faint:#aaa;--line:#3a3a3a;--back:#151515;--fair:#4cc79b;--hindered:#ff9d5c}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:84rem;padding:1rem;font:16px/1.45 system-ui,sans-serif;color:var(--ink);
background:var(--back)}
p,li,dd,summary,h1,h2,h3{overflow-wrap:anywhere}
h1{font-size:1rem;font-weight:400;color:var(--faint);margin:0}h2{font-size:1.05rem;display:inline;margin:0}
h3,figure h2{display:block;font-size:.95rem;margin:.5rem 0 .25rem}
.answer{font-size:1.4rem;line-height:1.35;font-weight:600;margin:.4rem 0 .6rem;max-width:64rem}
.verdict{border-left:4px solid var(--fair);padding:.15rem .7rem;margin:0 0 .8rem}.hindered{border-color:var(--hindered)}
.verdict summary span,.inside{color:var(--faint);font-size:.875rem}
.first>div{min-width:0;max-width:100%}
.first{display:flex;flex-wrap:wrap;gap:1rem 2rem;align-items:flex-start;margin-bottom:1rem}
.first .charts{flex:1 1 30rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr))}
.first .charts:has(>figure:only-child){flex:0 1 28rem}
dl{margin:.5rem 0;font-size:.9rem}.first>div:last-child{flex:0 1 24rem}
.first td.text:first-child{min-width:0}dl div{border-bottom:1px solid var(--line);padding:.25rem 0}
dt{font-weight:600}dd{margin:0;color:var(--faint)}
main>details:not(.verdict),section>details:not(.verdict){border-top:1px solid var(--line);padding:.5rem 0}
summary{cursor:pointer}.wide{overflow-x:auto;max-width:100%}
table{border-collapse:collapse;font-size:.85rem;margin:.5rem 0}
caption{text-align:left;color:var(--faint);padding:.25rem 0}
caption span{position:sticky;left:0;display:inline-block;max-width:min(80rem,calc(100vw - 2rem))}
th,td{padding:.3rem .6rem;border-bottom:1px solid var(--line);text-align:right;white-space:pre;vertical-align:top}
th{white-space:normal;vertical-align:bottom}.text{text-align:left}
td.text{white-space:normal;min-width:6rem;max-width:28rem;overflow-wrap:break-word}
th:first-child,td:first-child{position:sticky;left:0;background:var(--back)}
td.text:first-child{min-width:min(11rem,36vw);max-width:min(28rem,40vw)}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,26rem),1fr));gap:1rem}
figure{margin:0;min-width:0}figure svg,img{display:block;max-width:100%;height:auto;overflow:visible}
.row{display:contents}.charts:has(img){grid-template-columns:repeat(auto-fill,minmax(min(100%,36rem),1fr))}
img{background:#fff}@media(min-width:60rem){.long{grid-column:span 2}}
figure .vega-embed{display:block}
.answers{padding-left:1.2rem}.answers li{margin:.4rem 0}section{margin:2rem 0 4rem}
svg [fill="#222222"],svg [fill="#000000"]{fill:var(--ink)}
svg [stroke="#000000"],svg [stroke="#222222"]{stroke:var(--ink)}
svg [stroke="#e6e6e6"]{stroke:var(--line)}
figure text{paint-order:stroke;stroke:var(--back);stroke-width:3px}
.key{list-style:none;font-size:.85rem;padding:0;columns:22rem}
.key span{display:inline-block;width:2em;margin-right:.5em;line-height:1;
text-align:center;border-bottom:3px solid;print-color-adjust:exact}
details td.text{white-space:pre-line}
a{color:inherit}code{font-size:.8rem;overflow-wrap:anywhere}
@media screen and (max-width:600px){.cards thead{display:none}
.cards,.cards caption,.cards tbody,.cards td{display:block}
.cards tr{display:grid;grid-template-columns:repeat(auto-fill,minmax(9rem,1fr));gap:0 1rem;padding:.4rem 0;
border-bottom:1px solid var(--line)}
.cards.long tr{grid-template-columns:1fr}
.cards td,.cards td.text{border:0;padding:.1rem 0;text-align:right;white-space:pre-line;
min-width:0;max-width:none;font-size:.8rem}
.cards td::before{content:attr(data-of);float:left;margin-right:.5rem;color:var(--faint);text-align:left;max-width:100%}
.cards td.text{overflow-wrap:anywhere}
.cards td.text:first-child{grid-column:1/-1;text-align:left;font-weight:600;position:static}
.cards td:first-child::before{content:none}
.first table{font-size:.75rem}.first th,.first td{padding:.3rem .25rem}
.answer{font-size:1.1rem}h1{font-size:.85rem}.verdict{font-size:.9rem}}
@media print{@page{size:portrait;margin:12mm}.answer{font-size:1.1rem}summary{list-style:none}
:root{color-scheme:light;--ink:#222;--faint:#555;--line:#e6e6e6;--back:#fff;--fair:#00744f;--hindered:#a84300}
body{max-width:none;padding:0;font-size:12px}figure,tr,li{break-inside:avoid}
summary,h1,h3,caption,thead{break-after:avoid;break-inside:avoid}
table:not(:has(tbody>tr:nth-child(4))){break-inside:avoid}
tbody>tr:nth-child(-n+2),tbody>tr:last-child{break-before:avoid}
.row{display:flex;gap:1rem;break-inside:avoid}.row figure{flex:0 0 calc(50% - .5rem)}
details .charts{display:block}img{max-height:108mm}
/* of a heading, whose break-after Chromium ignores: room for what follows it */
details:has(>.charts)>summary::after{content:"";display:block;height:60mm;margin-bottom:-60mm}
.first{gap:0 1rem}.first .charts{flex:1 1 100%}.first .charts:has(>figure:only-child){flex:0 1 48%}
.first>div:last-child{flex:1 1 45%}.first dl{columns:2}.first dl div{break-inside:avoid}
section{margin:1rem 0}.wide{overflow:visible}#help{display:none}code{font-size:.65rem}ol,ul{margin:.25rem 0}
details::details-content{content-visibility:visible;block-size:auto}h2{font-size:1rem}
h3,figure h2{font-size:.8rem;margin:.25rem 0 .1rem}
table{font-size:.65rem}th,td{padding:.15rem .3rem}th:first-child,td:first-child{position:static}
th,td,td.text,td.text:first-child{white-space:pre-line;min-width:0}td.text:first-child{min-width:13em}
.key{font-size:.65rem}}
"""
