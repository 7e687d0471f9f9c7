#include "app/report/page_assets.h"

#include "app/report/html.h"

namespace octavo {

namespace {

constexpr std::string_view kStyle = R"css(
:root{color-scheme:light dark;--page:#fbfbfa;--panel:#fff;--ink:#1c1e21;--soft:#656b73;--line:#e4e5e7;--grid:#eeeff0;--hint:#f4f5f6;
--diff:#fff3d6;--bad:#c92a2a;--mark:#8a9099;
--s0:#2563c9;--s1:#d9480f;--s2:#2b8a3e;--s3:#8f3fb8;--s4:#0b7f92;--s5:#c2255c;--s6:#8a6d00;--s7:#51565c}
@media (prefers-color-scheme:dark){:root{--page:#131416;--panel:#1a1c1f;--ink:#e6e7e9;--soft:#9aa0a8;--line:#2d3035;--grid:#25282c;--hint:#222529;
--diff:#453712;--bad:#ff7b72;--mark:#7b828b;
--s0:#6ea3ff;--s1:#ff8f57;--s2:#63c97a;--s3:#cf8df0;--s4:#4fc3d6;--s5:#ff7fa8;--s6:#dcb93c;--s7:#b4bac2}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:14px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
main{max-width:1360px;margin:0 auto;padding:28px 24px 60px}
h1{font-size:22px;font-weight:650;margin:0 0 2px;overflow-wrap:anywhere}
h2{font-size:15px;font-weight:650;margin:34px 0 10px}
p{margin:0 0 12px}
.soft,figcaption span{color:var(--soft)}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,560px),1fr));gap:16px}
.chart{margin:0;background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:12px 12px 6px;position:relative;min-width:0}
.wide{grid-column:1/-1}
figcaption b{font-weight:620}
figcaption span{font-size:12.5px;margin-left:6px}
svg{display:block;width:100%;height:auto;overflow:hidden;touch-action:pan-y}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;margin:3px 0 2px;font-size:12.5px;color:var(--soft)}
.key{display:inline-flex;align-items:center;gap:6px;overflow-wrap:anywhere}
.swatch{width:14px;height:3px;border-radius:2px;flex:none}
.box{height:10px;width:10px}
.line{fill:none;stroke-width:1.6;stroke-linejoin:round;vector-effect:non-scaling-stroke}
.faint{opacity:.28;stroke-width:1}.dashed{stroke-dasharray:5 4}
.grid{stroke:var(--grid)}.base{stroke:var(--mark)}
.tick,.axis{fill:var(--soft);font-size:11px;font-variant-numeric:tabular-nums}
.mark{stroke:var(--mark);stroke-width:1;vector-effect:non-scaling-stroke}
.m0{stroke:var(--mark);stroke-dasharray:4 3}.m1{stroke:var(--soft);stroke-width:1.5}.m2,.m3{stroke:var(--bad);opacity:.6}.m4{stroke:var(--bad);stroke-dasharray:2 3;opacity:.6}
.tip{position:absolute;pointer-events:none;background:var(--panel);border:1px solid var(--line);border-radius:6px;padding:5px 9px;font-size:12px;
box-shadow:0 3px 12px #0003;white-space:nowrap;z-index:2;font-variant-numeric:tabular-nums}
.tip i{display:inline-block;margin-right:6px;vertical-align:middle}
.cross{stroke:var(--mark);stroke-dasharray:2 2}.span{fill:var(--s0);opacity:.12}
.scroll{overflow-x:auto;background:var(--panel);border:1px solid var(--line);border-radius:8px}
table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:5px 12px;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}
th{font-weight:600;white-space:nowrap;color:var(--soft)}
tr:last-child td,tr:last-child th{border-bottom:0}
td.n,th.n{text-align:right;white-space:nowrap}
td.nowrap{white-space:nowrap}
code,.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:12px}
.diff td,.diff th{background:var(--diff)}
.kind{white-space:nowrap}.kind.k2,.kind.k3,.kind.k4{color:var(--bad)}
.reserved{opacity:.16}.used{opacity:.82;shape-rendering:crispEdges}.over{stroke:var(--ink);stroke-opacity:.35;stroke-width:.5}.edge{stroke:var(--panel);stroke-width:.8}
.band:hover .used{opacity:1}.label{fill:var(--ink);font-size:11px;paint-order:stroke;stroke:var(--panel);stroke-width:2.5px;stroke-opacity:.75;stroke-linejoin:round;pointer-events:none}
.limit{stroke:var(--bad);stroke-dasharray:6 4}.phase{stroke:var(--soft);stroke-width:3}
details{margin-top:12px}summary{cursor:pointer;color:var(--soft);margin-bottom:8px}
)css";

// One style per line of a chart, filled swatches too.
std::string color_rules() {
  std::string rules;
  for (int i = 0; i < 8; ++i) {
    const std::string n = std::to_string(i);
    rules += ".line.s" + n + "{stroke:var(--s" + n + ")}.dot.s" + n + ",.area.s" + n + "{fill:var(--s" + n +
             ")}.swatch.s" + n + "{background:var(--s" + n + ")}\n";
  }
  return rules;
}

constexpr std::string_view kChartScript = R"js(
const NS=document.querySelector("svg").namespaceURI,L=62,R=14,T=12,B=36;
let view=[0,lastX];
const make=(name,attributes,text)=>{const e=document.createElementNS(NS,name);for(const k in attributes)e.setAttribute(k,attributes[k]);if(text!==undefined)e.textContent=text;return e};
const label=(v,largest)=>{
 if(v===0)return'0';
 if(largest<1e-2)return v.toExponential().replace(/^(-?[\d.]+)e/,(_,m)=>+(+m).toPrecision(6)+'e').replace('e+','e');
 if(largest>=1e4)for(const[s,u]of[[1e12,'T'],[1e9,'B'],[1e6,'M'],[1e3,'k']])if(largest>=s)return +(v/s).toPrecision(6)+u;
 return String(+v.toPrecision(6))};
const long=v=>{const a=Math.abs(v);return a>=1e4?Math.round(v).toLocaleString('en-US'):a>0&&a<1e-3?v.toExponential(2):String(+v.toPrecision(5))};
const ticks=(lo,hi,n)=>{const rough=(hi-lo)/n,p=10**Math.floor(Math.log10(rough)),f=rough/p,s=p*(f<1.5?1:f<3.5?2:f<7.5?5:10),r=[];if(!(rough>0))return[lo];for(let i=Math.ceil(lo/s-1e-9);i*s<=hi+1e-9*s;i++)r.push(i*s);return r};
const logTicks=(lo,hi)=>{const few=Math.log10(hi/lo)<2.5,r=[];for(let p=Math.floor(Math.log10(lo));p<=Math.log10(hi);p++)for(const f of[1,2,5]){const t=f*10**p;if((f===1||few)&&t>=lo&&t<=hi)r.push(t)}return r};
// The first index whose x is at least v.
const from=(xs,v)=>{let lo=0,hi=xs.length;while(lo<hi){const m=(lo+hi)>>1;if(xs[m]<v)lo=m+1;else hi=m}return lo};
class Chart{
 constructor(data){
  Object.assign(this,data);
  this.figure=document.getElementById(this.id);this.svg=this.figure.querySelector('svg');
  const box=this.svg.viewBox.baseVal;this.W=box.width;this.H=box.height;
  this.lines=this.svg.querySelector('.lines');this.axes=this.svg.querySelector('.axes');this.markGroup=this.svg.querySelector('.marks');
  this.unit=this.axes.querySelector('[transform]');
  this.over=make('g',{});this.svg.append(this.over);
  this.svg.addEventListener('pointermove',e=>this.hover(e));
  this.svg.addEventListener('pointerleave',()=>{if(this.drag===undefined)this.clear()});
  this.svg.addEventListener('pointerdown',e=>{if(e.button)return;this.drag=this.value(e);this.svg.setPointerCapture(e.pointerId)});
  this.svg.addEventListener('pointerup',e=>{const a=this.drag,b=this.value(e);this.drag=undefined;this.clear();if(a!==undefined&&Math.abs(b-a)>(view[1]-view[0])/80)zoom([Math.max(0,Math.min(a,b)),Math.min(lastX,Math.max(a,b))])});
  this.svg.addEventListener('dblclick',()=>zoom([0,lastX]));
 }
 value(e){const r=this.svg.getBoundingClientRect(),x=(e.clientX-r.left)/r.width*this.W;return view[0]+(x-L)/(this.W-L-R)*(view[1]-view[0])}
 atX(v){return L+(v-view[0])/(view[1]-view[0])*(this.W-L-R)}
 atY(v){const f=this.log?Math.log10:t=>t;return this.H-B-(f(v)-f(this.lo))/(f(this.hi)-f(this.lo))*(this.H-T-B)}
 clear(){this.over.replaceChildren();if(this.tip){this.tip.remove();this.tip=undefined}}
 range(){
  let lo=Infinity,hi=-Infinity;
  const begin=view[0]===0?this.crops*view[1]:view[0];
  for(const s of this.series)for(let i=from(s.x,begin);i<s.x.length&&s.x[i]<=view[1];i++){lo=Math.min(lo,s.y[i]);hi=Math.max(hi,s.y[i])}
  if(lo>hi)return this.log?[1,10]:[0,1];
  if(this.log)return[lo/1.1,hi*1.1];
  if(this.zero){lo=Math.min(lo,0);hi=Math.max(hi,0)}
  const room=.04*(hi-lo)||(hi===0?1:.05*Math.abs(hi));
  return[this.zero&&lo===0?0:lo-room,hi+room];
 }
 draw(){
  [this.lo,this.hi]=this.range();
  const axes=[],b=this.H-B,r=this.W-R;
  const ys=this.log?logTicks(this.lo,this.hi):ticks(this.lo,this.hi,5),most=Math.max(...ys.map(Math.abs));
  for(const t of ys){const y=this.atY(t);axes.push(make('line',{class:'grid',x1:L,x2:r,y1:y,y2:y}),make('text',{class:'tick','text-anchor':'end',x:L-7,y:y+3.5},label(t,most)))}
  const xs=ticks(view[0],view[1],Math.max(1,Math.min(this.wide?12:7,Math.floor(view[1]-view[0]))));
  for(const t of xs){const x=this.atX(t);axes.push(make('line',{class:'base',x1:x,x2:x,y1:b,y2:b+4}),make('text',{class:'tick','text-anchor':'middle',x,y:b+16},label(t,xs[xs.length-1])))}
  axes.push(make('line',{class:'base',x1:L,x2:r,y1:b,y2:b}),make('text',{class:'axis','text-anchor':'middle',x:(L+r)/2,y:this.H-4},'step'));
  if(this.unit)axes.push(this.unit);
  this.axes.replaceChildren(...axes);
  this.markGroup.replaceChildren(...marks.filter(m=>m.x>=view[0]&&m.x<=view[1]).map(m=>{const x=this.atX(m.x),e=make('line',{class:'mark m'+m.kind,x1:x,x2:x,y1:m.kind===1?b-6:T,y2:b});e.append(make('title',{},m.text));return e}));
  this.lines.replaceChildren(...this.series.flatMap(s=>{
   const i=Math.max(0,from(s.x,view[0])-1),j=Math.min(s.x.length,from(s.x,view[1])+1),points=[];
   for(let k=i;k<j;k++)points.push(this.atX(s.x[k]).toFixed(1)+','+this.atY(s.y[k]).toFixed(1));
   const line=make('polyline',{class:'line s'+s.color+(s.style===1?' faint':s.style===3?' dashed':''),points:points.join(' '),'clip-path':'url(#clip'+(this.wide?'-wide':'')+')'});
   const few=s.style>1&&j-i<=120||j-i===1;
   return[line,...few?points.slice().map(p=>p.split(',')).filter(p=>+p[0]>=L-1&&+p[0]<=r+1).map(([cx,cy])=>make('circle',{class:'dot s'+s.color,cx,cy,r:2.6})):[]];
  }));
 }
 hover(e){
  const at=Math.min(Math.max(this.value(e),view[0]),view[1]);
  this.clear();
  if(this.lo===undefined)[this.lo,this.hi]=this.range();
  if(this.drag!==undefined){const a=this.atX(this.drag),c=this.atX(at);this.over.append(make('rect',{class:'span',x:Math.min(a,c),y:T,width:Math.abs(c-a),height:this.H-T-B}));return}
  const found=[];
  for(const s of this.series){
   if(!s.x.length||s.style===1&&this.series.some(o=>o!==s&&o.color===s.color&&o.style===0))continue;
   let i=from(s.x,at);if(i===s.x.length||i>0&&at-s.x[i-1]<s.x[i]-at)i--;
   found.push([Math.abs(s.x[i]-at),s,i]);
  }
  if(!found.length)return;
  found.sort((p,q)=>p[0]-q[0]);
  const x=found[0][1].x[found[0][2]];
  this.over.append(make('line',{class:'cross',x1:this.atX(x),x2:this.atX(x),y1:T,y2:this.H-B}));
  this.tip=document.createElement('div');this.tip.className='tip';
  const head=document.createElement('div');head.className='soft';head.textContent='step '+Math.round(x).toLocaleString('en-US');this.tip.append(head);
  for(const s of this.series){const f=found.find(g=>g[1]===s);if(!f)continue;
   const near=Math.abs(s.x[f[2]]-x)<=(view[1]-view[0])/50;if(!near)continue;
   const row=document.createElement('div'),mark=document.createElement('i');mark.className='swatch s'+s.color;
   row.append(mark,(s.label?s.label+'  ':'')+long(s.y[f[2]]));this.tip.append(row);
   this.over.append(make('circle',{class:'dot s'+s.color,cx:this.atX(s.x[f[2]]),cy:this.atY(s.y[f[2]]),r:3}));
  }
  this.figure.append(this.tip);
  const frame=this.figure.getBoundingClientRect(),left=e.clientX-frame.left;
  this.tip.style.left=(left+14)+'px';
  if(left+14+this.tip.offsetWidth>frame.width)this.tip.style.left=Math.max(4,left-14-this.tip.offsetWidth)+'px';
  this.tip.style.top=(e.clientY-frame.top+12)+'px';
 }
}
const all=charts.map(c=>new Chart(c));
document.documentElement.dataset.charts=all.length;  // that the script came so far
function zoom(range){if(range[1]<=range[0])return;view=range;for(const c of all){c.clear();c.draw()}}
)js";

}  // namespace

std::string_view chart_script() { return kChartScript; }

std::string html_page(std::string_view title, std::string_view body, std::string_view script) {
  std::string page = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n";
  page += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n";
  page += "<title>" + html_escape(title) + "</title>\n<style>" + std::string(kStyle) + color_rules() +
          "</style>\n</head>\n<body>\n<main>\n";
  page += body;
  page += "</main>\n";
  if (!script.empty()) page += "<script>\n" + std::string(script) + "</script>\n";
  return page + "</body>\n</html>\n";
}

}  // namespace octavo
